"""A bucket, or any place that pyarrow.fs opens by URI, as a `Store`.

In: a URI. Out: the five verbs. An object of such a store appears when its upload is complete. Must not know
what objects mean.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyarrow import fs


def connect(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system that a URI names, and the path in it."""
    filesystem, path = fs.FileSystem.from_uri(uri)
    return filesystem, path.rstrip("/")


class RemoteStore:
    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._filesystem, self._root = connect(self.uri)

    def write(self, name: str, fill: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch, "object")
            fill(work)
            fs.copy_files(
                str(work),
                f"{self._root}/{name}",
                source_filesystem=fs.LocalFileSystem(),
                destination_filesystem=self._filesystem,
            )

    def read(self, name: str) -> bytes:
        with self._filesystem.open_input_file(f"{self._root}/{name}") as file:
            return bytes(file.read())

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, "object")
            path.write_bytes(self.read(name))
            yield path

    def list(self, prefix: str = "") -> dict[str, int]:
        below = fs.FileSelector(f"{self._root}/{prefix}", allow_not_found=True, recursive=True)
        files = (info for info in self._filesystem.get_file_info(below) if info.type == fs.FileType.File)
        return dict(sorted((info.path[len(self._root) + 1 :], info.size) for info in files))

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._root}/{name}")
