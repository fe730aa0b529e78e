"""A folder of a local or shared file system as a `Store`.

In: a folder. Out: the five verbs. An object is written beside, flushed, then renamed into place.
Must not know what objects mean. Failure shows as the OSError of the file system, which names the path.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from god_ray import durable

UNFINISHED = ".unfinished"
"""The folder below the root in which objects are written before they are renamed."""
_counter = itertools.count()


def local_path(place: str) -> Path:
    """Of an absolute path or a `file://` URI."""
    return Path(unquote(urlsplit(place).path) if place.startswith("file://") else place)


class LocalStore:
    def __init__(self, root: Path) -> None:
        self.root, self.uri = root, str(root)

    def write(self, name: str, fill: Callable[[Path], object]) -> None:
        final = self.root / name
        work = self.root / UNFINISHED / f"{socket.gethostname()}-{os.getpid()}-{next(_counter)}"
        _make(work.parent)
        try:
            fill(work)
            durable.sync(work)
            _make(final.parent)
            work.replace(final)
            durable.sync(final.parent)
        finally:
            work.unlink(missing_ok=True)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path]:
        path = self.root / name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there")
        yield path

    def list(self, prefix: str = "") -> dict[str, int]:
        found = {}
        for parent, folders, names in os.walk(self.root / prefix):
            folders[:] = [folder for folder in folders if folder != UNFINISHED]
            for name in names:
                path = Path(parent, name)
                with suppress(FileNotFoundError):  # removed this moment
                    found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return dict(sorted(found.items()))

    def remove(self, name: str) -> None:
        """And the folders that are empty without it."""
        path = self.root / name
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == self.root:
                return
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # not empty
                return


def _make(folder: Path) -> None:
    """The folder, and the names of new ones in their parents, durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        durable.sync(path.parent)
