"""Files that somebody else wrote and god_ray only reads: on this machine, or by URI through pyarrow.fs.

In: an absolute path, or a URI that pyarrow.fs knows (s3, gs, abfs), its options behind a "?". Out: what is
there, and open files. Must not know what the files hold. Every failure is an OSError that pyarrow or the
system words.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote, urlsplit

from god_ray.storage.store import is_remote


@dataclass(frozen=True)
class Stat:
    size: int
    changed_ns: int


def stat(path: str) -> Stat:
    """Raises FileNotFoundError if it is no file."""
    if not is_remote(path):
        found = os.stat(path)
        return Stat(found.st_size, found.st_mtime_ns)
    info = _info(path)
    if not info.is_file:
        raise FileNotFoundError(f"{path} is not there")
    return Stat(info.size, info.mtime_ns or 0)


def open_binary(path: str) -> BinaryIO:
    """For reading; random access."""
    if not is_remote(path):
        return open(path, "rb")
    filesystem, inside = _located(path)
    return cast(BinaryIO, filesystem.open_input_file(inside))


def is_remote_file(uri: str) -> bool:
    return bool(_info(uri).is_file)


def walk(uri: str) -> Iterator[tuple[str, int]]:
    """(name below the URI, bytes) of every file, at any depth; nothing if there is no such folder."""
    from pyarrow import fs

    filesystem, inside = _located(uri)
    root = inside.rstrip("/")
    for info in filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True)):
        if info.is_file:
            yield info.path[len(root) + 1 :], info.size


def below(uri: str, name: str) -> str:
    """The URI of a file that `walk` named."""
    place, mark, options = uri.partition("?")
    return f"{place.rstrip('/')}/{quote(name)}{mark}{options}"


def _info(uri: str) -> Any:
    filesystem, inside = _located(uri)
    return filesystem.get_file_info(inside)


def _located(uri: str) -> tuple[Any, str]:
    parts = urlsplit(uri)
    options = f"?{parts.query}" if parts.query else ""
    filesystem, root = _opened(f"{parts.scheme}://{parts.netloc}{options}")
    return filesystem, "/".join(part for part in (root, unquote(parts.path).strip("/")) if part)


@lru_cache(maxsize=16)
def _opened(bucket: str) -> tuple[Any, str]:
    """Once per bucket: opening one asks the network for its region."""
    from pyarrow import fs

    filesystem, root = fs.FileSystem.from_uri(bucket)
    return filesystem, root.strip("/")
