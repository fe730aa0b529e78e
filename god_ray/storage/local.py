"""A folder of a local or shared file system as a `Store`.

In: a folder. Out: the five verbs. An object is written beside, flushed, then renamed into place; nothing goes
through the machine's temporary folder. Must not know what objects mean. Failure shows as an OSError that
names the folder and the object.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from god_ray import durable
from god_ray.storage import leftovers
from god_ray.storage.named import named
from god_ray.storage.store import UNFINISHED, check_name, is_name

_counter = itertools.count()


class LocalStore:
    def __init__(self, root: Path) -> None:
        self.root, self.uri = root, str(root)

    def write(self, name: str, fill: Callable[[Path], object]) -> None:
        final = self.root / check_name(name)
        work = self.root / UNFINISHED / f"{leftovers.WRITER}-{os.getpid()}-{next(_counter)}"
        try:
            with named(f"{self.uri}: write of {name}", work):
                _make(work.parent)
                leftovers.sweep(work.parent)
                fill(work)
                durable.sync(work)
                _move(work, final)
        finally:
            with suppress(OSError):  # swept later; what matters is why nothing was written
                work.unlink()

    def read(self, name: str) -> bytes:
        path = self.root / check_name(name)
        with named(f"{self.uri}: read of {name}"):
            _expect_object(path)
            return path.read_bytes()

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path]:
        path = self.root / check_name(name)
        with named(f"{self.uri}: fetch of {name}"):
            _expect_object(path)
        yield path

    def list(self, prefix: str = "") -> dict[str, int]:
        top, found = self.root / check_name(prefix, empty=True), {}
        with named(f"{self.uri}: list of {prefix or 'all'}"):
            for parent, folders, names in os.walk(top, onerror=_unless_gone):
                folders[:] = [folder for folder in folders if folder != UNFINISHED]
                for path in (Path(parent, name) for name in names):
                    with suppress(FileNotFoundError):  # removed this moment
                        found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return {name: found[name] for name in sorted(filter(is_name, found))}

    def remove(self, name: str) -> None:
        """And the folders that are empty without it."""
        path = self.root / check_name(name)
        with named(f"{self.uri}: remove of {name}"):
            if not path.is_file() and not path.is_symlink():
                return
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == self.root or not _remove_empty(folder):
                    return


def _expect_object(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such object")


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _remove_empty(folder: Path) -> bool:
    """Whether it is gone; not if something is in it."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _move(work: Path, final: Path) -> None:
    """`work` becomes `final`, durably, even if somebody removes the folders between as empty."""
    while True:
        try:
            _make(final.parent)
            work.replace(final)
            break
        except FileNotFoundError:
            work.lstat()  # if ours is gone, that is the error
    with suppress(FileNotFoundError):  # written, and removed since
        durable.sync(final.parent)


def _make(folder: Path) -> None:
    """The folder, and the names of new ones in their parents, durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        durable.sync(path.parent)
