"""Files that somebody else wrote and god_ray only reads: on this machine, or by URI through pyarrow.fs.

In: an absolute path, or a URI that pyarrow.fs knows (s3, gs, abfs), its options behind a "?". Out: what is
there, and open files. Must not know what the files hold. Every failure is an OSError that pyarrow or the
system words.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit

from god_ray.storage.filesystem import Opened, Outlook, cause, open_filesystem, outlook, without_secrets
from god_ray.storage.store import is_remote
from god_ray.storage.tries import Patience

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Stat:
    size: int
    changed_ns: int


def stat(path: str) -> Stat:
    """Raises FileNotFoundError if it is no file."""
    if not is_remote(path):
        found = os.stat(path)
        return Stat(found.st_size, found.st_mtime_ns)
    info = tried(path, lambda: _info(path))
    if not info.is_file:
        raise FileNotFoundError(errno.ENOENT, f"{without_secrets(path)} is not there")
    return Stat(info.size, info.mtime_ns or 0)


def open_binary(path: str) -> BinaryIO:
    """For reading; random access."""
    if not is_remote(path):
        return open(path, "rb")
    filesystem, inside = _located(path)
    return cast(BinaryIO, filesystem.open_input_file(inside))


def is_remote_file(uri: str) -> bool:
    return bool(tried(uri, lambda: _info(uri)).is_file)


def walk(uri: str) -> dict[str, int]:
    """Name below the URI -> bytes of every file, at any depth; nothing if there is no such folder."""
    return tried(uri, lambda: _walk(uri))


def below(uri: str, name: str) -> str:
    """The URI of a file that `walk` named."""
    place, mark, options = uri.partition("?")
    return f"{place.rstrip('/')}/{quote(name)}{mark}{options}"


def tried(path: str, once: Callable[[], T], patience: Patience = Patience()) -> T:  # noqa: B008 - frozen
    """What `once` returns; called again after what passes, if the path is remote, with a line in the log."""
    for number in range(1, patience.num_tries + 1):
        try:
            return once()
        except OSError as error:
            last = number == patience.num_tries or outlook(error) is not Outlook.PASSING
            if last or not is_remote(path):
                raise
            pause_s, said = patience.pause_s(number), cause(error, patience)
            log.warning(
                "%s: try %d failed, again in %.1f s: %s", without_secrets(path), number, pause_s, said
            )
            time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")


def _walk(uri: str) -> dict[str, int]:
    from pyarrow import fs

    filesystem, inside = _located(uri)
    selector = fs.FileSelector(inside, allow_not_found=True, recursive=True)
    infos = filesystem.get_file_info(selector)
    return {info.path[len(inside) + 1 :]: info.size for info in infos if info.is_file}


def _info(uri: str) -> Any:
    filesystem, inside = _located(uri)
    return filesystem.get_file_info(inside)


def _located(uri: str) -> tuple[Any, str]:
    parts = urlsplit(uri)
    options = f"?{parts.query}" if parts.query else ""
    opened = _opened(f"{parts.scheme}://{parts.netloc}{options}")
    inside = (opened.root.strip("/"), unquote(parts.path).strip("/"))
    return opened.filesystem, "/".join(part for part in inside if part)


@lru_cache(maxsize=16)
def _opened(bucket: str) -> Opened:
    """Once per bucket: opening one asks the network for its region."""
    return open_filesystem(bucket, Patience())
