"""Files that somebody else wrote and god_ray only reads: on this machine, or by URI through pyarrow.fs.

In: an absolute path, or a URI that pyarrow.fs knows (s3, gs, abfs), its options behind a "?". Out: what is
there, and open files. Must not know what the files hold. Every failure is an OSError that pyarrow or the
system words.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit

from god_ray.fileuri import without_secrets
from god_ray.storage import store
from god_ray.storage.filesystem import Opened, open_filesystem
from god_ray.storage.retrying import Retrying
from god_ray.storage.store import is_remote
from god_ray.storage.tries import Patience

T = TypeVar("T")


@dataclass(frozen=True)
class Stat:
    size: int
    changed_ns: int


def stat(path: str) -> Stat:
    """One try of a remote one: see `tried`. Raises FileNotFoundError if it is no file."""
    if not is_remote(path):
        found = os.stat(path)
        return Stat(found.st_size, found.st_mtime_ns)
    info = _info(path)
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
    return store.below(uri, quote(name))


def tried(path: str, once: Callable[[], T]) -> T:
    """What `once` returns. If the path is remote, it is tried again as a store's verbs are: it must open."""
    return _retrying(without_secrets(path), once) if is_remote(path) else once()


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


_retrying = Retrying(Patience(), _opened.cache_clear)
