"""Files that somebody else wrote and god_ray only reads: on this machine, or by URI through pyarrow.fs.

In: an absolute path, or a URI that pyarrow.fs knows (s3, gs, abfs), its options behind a "?". Out: what is
there, and open files. Must not know what the files hold. Every failure is an OSError that pyarrow or the
system words. What several functions do together is `tried` as a whole, once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit

from god_ray.storage.connection import Connection
from god_ray.storage.filesystem import without_secrets
from god_ray.storage.store import is_remote

T = TypeVar("T")


@dataclass(frozen=True)
class Stat:
    size: int
    changed_ns: int


def stat(path: str) -> Stat:
    """One try. Raises FileNotFoundError if it is no file."""
    if not is_remote(path):
        found = os.stat(path)
        return Stat(found.st_size, found.st_mtime_ns)
    info = _info(path)
    if not info.is_file:
        raise FileNotFoundError(errno.ENOENT, f"{without_secrets(path)} is not there")
    return Stat(info.size, info.mtime_ns or 0)


def open_binary(path: str) -> BinaryIO:
    """For reading; random access. One try."""
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


def tried(path: str, once: Callable[[], T]) -> T:
    """What `once` returns, which does one try of something with that path; called again after what passes, if
    the path is remote.
    """
    return _connection(path).tried(without_secrets(path), once) if is_remote(path) else once()


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
    opened = _connection(uri).opened()
    inside = (opened.root.strip("/"), unquote(urlsplit(uri).path).strip("/"))
    return opened.filesystem, "/".join(part for part in inside if part)


def _connection(uri: str) -> Connection:
    parts = urlsplit(uri)
    return _bucket(f"{parts.scheme}://{parts.netloc}{parts.query and '?'}{parts.query}")


@lru_cache(maxsize=16)
def _bucket(uri: str) -> Connection:
    """Once per bucket: opening one asks the network for its region."""
    return Connection(uri)
