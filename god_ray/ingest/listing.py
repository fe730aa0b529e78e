"""Finding the files of a data set: a file, a folder, a glob, or a list of those.

In: absolute paths as the spec names them. Out: `Found` files in source order, each with the name under which
it enters the fingerprint (relative, so that a data set may be moved). Must not open any of them.
Failures are `DataError`s that name the path.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass

from god_ray.errors import DataError


@dataclass(frozen=True)
class Found:
    path: str
    name: str
    """Relative to the folder, the fixed part of the glob, or the file's own folder; with "/"."""
    size: int


def list_files(paths: list[str]) -> list[Found]:
    """Each entry's files sorted by name, entries in the order given.

    Left out: names that begin with "_" or "." (also of folders) and "*.crc". Raises DataError if an entry
    has no file, or if a file is named twice (its rows would be used twice).
    """
    found: dict[str, Found] = {}
    for entry in paths:
        files = list(_expand(entry))
        if not files:
            raise DataError(
                f"{entry}: no data there",
                "It is neither a file, nor a folder with files, nor a pattern that matches one; names that "
                'begin with "_" or "." do not count.',
                "correct data.train or data.eval",
                file=entry,
            )
        for file in files:
            if (same := os.path.realpath(file.path)) in found:
                raise DataError(
                    f"{file.path} is named twice",
                    "Each row is used exactly once in an epoch.",
                    "remove one of the entries",
                    file=file.path,
                )
            found[same] = file
    return list(found.values())


def _expand(entry: str) -> Iterator[Found]:
    if os.path.isdir(entry):
        yield from _walk(entry, entry)
    elif os.path.exists(entry):
        yield _file(entry, os.path.dirname(entry))
    elif glob.has_magic(entry):
        root = _fixed_part(entry)
        for path in sorted(glob.glob(entry, recursive=True)):
            if _ignored(os.path.relpath(path, root)):
                continue
            if not os.path.isdir(path):
                yield _file(path, root)
            elif "**" not in entry:  # which matches what is inside by itself
                yield from _walk(path, root)


def _walk(folder: str, root: str) -> Iterator[Found]:
    inside = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not _ignored(name)]
        inside += [os.path.join(parent, name) for name in names if not _ignored(name)]
    yield from (_file(path, root) for path in sorted(inside))


def _file(path: str, root: str) -> Found:
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read", f"{error.strerror}.", "restore it, or take it out", file=path
        ) from error
    return Found(path, os.path.relpath(path, root).replace(os.sep, "/"), size)


def _ignored(name: str) -> bool:
    return name.endswith(".crc") or any(part[:1] in ("_", ".") for part in name.split(os.sep))


def _fixed_part(pattern: str) -> str:
    folder = os.path.dirname(pattern)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder
