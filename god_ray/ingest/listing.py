"""Finding the files of a data set: a file, a folder, a glob, or a list of those.

In: absolute paths and URIs as the spec names them. Out: `Found` files in source order, each with the name
under which it enters the fingerprint (relative, so that a data set may be moved). Must not open any of them.
Failures are `DataError`s that name the path.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from god_ray.errors import DataError
from god_ray.fileuri import has_secrets, without_secrets
from god_ray.ingest.fault import first_line
from god_ray.storage import inputs
from god_ray.storage.store import is_remote

_SIDE_RULE = 'names that begin with "_" or ".", *.crc and *.tmp are side files, which do not count'
_SIDE_FOLDERS = ("_temporary", ".ipynb_checkpoints")
_TABLE_LOGS = {"_delta_log": "Delta table", ".hoodie": "Hudi table", "_spark_metadata": "streaming sink"}


@dataclass(frozen=True)
class Found:
    path: str
    name: str
    """Relative to the folder, the fixed part of the glob, or the file's own folder; with "/"."""
    size: int


def list_files(paths: list[str]) -> list[Found]:
    """Each entry's files sorted by name, entries in the order given.

    Side files (`_is_side`) do not count, whether a folder, a glob or the list itself brings them. Raises
    DataError if an entry has no file, if nothing but side files is left, or if a file is named twice (its
    rows would be used twice).
    """
    found: dict[str, Found] = {}
    sides = []
    for entry in paths:
        if has_secrets(entry):
            raise _secret(entry)
        with _naming(entry):
            side = _names_side_file(entry)
            files = [] if side else list(_expand(entry))
        if side:
            sides.append(entry)
        elif not files:
            raise DataError(
                f"{entry}: no data there",
                f"It is no file, no folder with files, no pattern that matches one; {_SIDE_RULE}.",
                "correct data.train or data.eval",
                file=entry,
            )
        for file in files:
            same = file.path if is_remote(file.path) else os.path.realpath(file.path)
            if same in found:
                raise DataError(
                    f"{file.path} is named twice",
                    "Each row is used exactly once in an epoch.",
                    "remove one of the entries",
                    file=file.path,
                )
            found[same] = file
    if sides and not found:
        raise DataError(
            f"{', '.join(sides)}: only a side file",
            f"What writers leave beside the data is never read: {_SIDE_RULE}.",
            "point at the data, or give the file another name",
            file=sides[0],
        )
    return list(found.values())


def _secret(entry: str) -> DataError:
    shown = without_secrets(entry)
    return DataError(
        f"{shown}: credentials stand in the URI",
        "A place is kept with the run and told in messages.",
        "take them out, and give them by the environment (AWS_ACCESS_KEY_ID and the like)",
        file=shown,
    )


@contextmanager
def _naming(entry: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = "make it readable, or correct data.train or data.eval"
        raise DataError(f"{entry} cannot be read", f"{first_line(error)}.", fix, file=entry) from error


def _names_side_file(entry: str) -> bool:
    """A path to one file that is no data. Of its folders only those count that never hold any."""
    remote = is_remote(entry)
    folder, name = os.path.split(entry.partition("?")[0] if remote else entry)
    unfinished = any(part in _SIDE_FOLDERS for part in folder.split("/"))
    is_file = inputs.is_remote_file if remote else os.path.isfile
    return (unfinished or _is_side(name)) and is_file(entry)


def _expand(entry: str) -> Iterator[Found]:
    if is_remote(entry):
        yield from _expand_uri(entry)
    elif os.path.isdir(entry):
        yield from _walk(entry, entry)
    elif os.path.exists(entry):
        yield _file(entry, os.path.dirname(entry))
    elif glob.has_magic(entry):
        root = _fixed_part(entry)
        if "**" in entry:  # glob.glob would follow links that lead back for ever
            pattern = os.path.relpath(entry, root).split(os.sep)
            yield from (file for file in _walk(root, root) if _matches(file.name.split("/"), pattern))
            return
        for path in sorted(glob.glob(entry)):
            if any(map(_is_side, os.path.relpath(path, root).split(os.sep))):
                continue
            if not os.path.isdir(path):
                yield _file(path, root)
            else:
                yield from _walk(path, root)


def _expand_uri(uri: str) -> Iterator[Found]:
    """As the same on a disk, but "?" begins the options of a URI: in patterns write "*" or "[...]"."""
    place, mark, options = uri.partition("?")
    root = _fixed_part(place) if glob.has_magic(place) else place
    if root == place and inputs.is_remote_file(uri):
        yield Found(uri, unquote(place.rpartition("/")[2]), inputs.tried(uri, lambda: inputs.stat(uri)).size)
        return
    pattern = unquote(place[len(root) + 1 :]).split("/") if root != place else ["**"]
    folder = root + mark + options
    there = inputs.walk(folder)
    _refuse_table(uri, {part for name in there for part in name.split("/")[:-1]})
    for name in sorted(there):
        parts = name.split("/")
        if not any(map(_is_side, parts)) and _matches(parts, pattern):
            yield Found(inputs.below(folder, name), name, there[name])


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Whether the pattern is that of the file, or of a folder above it."""
    if not pattern or not parts:
        return not pattern
    if pattern[0] == "**":
        return len(pattern) == 1 or any(_matches(parts[i:], pattern[1:]) for i in range(len(parts)))
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _walk(folder: str, root: str) -> Iterator[Found]:
    inside = []
    first: dict[tuple[int, int], str] = {}
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        _refuse_table(parent, set(folders))
        about = os.stat(parent)
        if (other := first.setdefault((about.st_dev, about.st_ino), parent)) != parent:
            raise DataError(
                f"{parent} and {other} are one folder",
                "A link leads to it; each row is used exactly once in an epoch.",
                "remove the link, or name the files that are meant, for example with a pattern",
                file=parent,
            )
        folders[:] = [name for name in folders if not _is_side(name)]
        inside += [os.path.join(parent, name) for name in names if not _is_side(name)]
    yield from (_file(path, root) for path in sorted(inside))


def _raise(error: OSError) -> None:
    raise error


def _file(path: str, root: str) -> Found:
    fix = "restore it, or take it out"
    try:
        about = os.stat(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read", f"{error.strerror}.", fix, file=path) from error
    if not stat.S_ISREG(about.st_mode):
        why = "It is a pipe, a socket or a device: it has no size, and can't be read twice."
        raise DataError(f"{path} is no file", why, "write what comes out of it to a file", file=path)
    try:
        path.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise DataError(f"{shown} has a name that is not UTF-8", "", "rename it", file=shown) from error
    return Found(path, os.path.relpath(path, root).replace(os.sep, "/"), about.st_size)


def _is_side(name: str) -> bool:
    """A name in a data set that is no data: `_SUCCESS`, `_temporary`, `.part-0.parquet.crc`, `x.tmp`."""
    return name.startswith(("_", ".")) or name.endswith((".crc", ".tmp"))


def _refuse_table(folder: str, folders: set[str]) -> None:
    """A table whose log says which of the files count: reading all of them would bring back deleted rows."""
    for log in sorted(folders & _TABLE_LOGS.keys()):
        raise DataError(
            f"{folder} is a {_TABLE_LOGS[log]}",
            f"Which of its files count is written in {log}, which god_ray does not read.",
            "write its rows to plain Parquet files",
            file=folder,
        )


def _fixed_part(pattern: str) -> str:
    folder = os.path.dirname(pattern)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder
