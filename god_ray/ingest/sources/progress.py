"""Reading a file of text: its content, uncompressed, and what tells it from another file.

In: a path. Out: a binary stream and how far it is read; a stamp. Must not know formats. A file that cannot be
read, or is not whole, shows as a DataError that names it.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import pyarrow as pa

from god_ray.errors import DataError
from god_ray.ingest.fault import first_line

HASHED_BYTES = 64 << 20


@contextmanager
def reading(path: str) -> Iterator[tuple[Any, Callable[[], int]]]:
    """For Arrow: the content of a file, `.gz` uncompressed, and what tells the bytes read of it so far."""
    with _readable(path), pa.OSFile(path, "rb") as raw:
        yield (pa.CompressedInputStream(raw, "gzip") if path.endswith(".gz") else raw), raw.tell


@contextmanager
def bytes_of(path: str) -> Iterator[BinaryIO]:
    """For Python: the same content."""
    with _readable(path), gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as content:
        yield cast(BinaryIO, content)


def stamp(path: str) -> list[object]:
    """What tells a file from another one: its content while it is small, else its place, size and time."""
    import xxhash

    with _readable(path), open(path, "rb") as file:
        about = os.fstat(file.fileno())
        if about.st_size > HASHED_BYTES:
            return [os.path.realpath(path), about.st_size, about.st_mtime_ns]
        return [about.st_size, xxhash.xxh3_128_hexdigest(file.read())]


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        fix = "restore it, or take it out"
        raise DataError(f"{path} cannot be read: {first_line(error)}.", "", fix, file=path) from error
