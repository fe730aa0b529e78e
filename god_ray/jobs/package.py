"""What of a spec's folder travels to the cluster, and what the job must find there under its own path.

In: a loaded spec. Out: a `Package`: files to send, changes to the spec for paths that are not sent, and words
about both. Nothing hidden (.git, .venv, .env), no runs, no virtual environment travels; data only while it is
small. A folder that is too large is a UserError that names its largest entries.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from god_ray.errors import UserError
from god_ray.ingest.listing import list_files
from god_ray.spec import LoadedSpec
from god_ray.spec.paths import is_function

MAX_BYTES = 100 * 2**20
MAX_DATA_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Package:
    """`files`: name below the spec's folder to path here. `changes`: what `--set` must say in the job."""

    files: dict[str, Path]
    changes: tuple[str, ...]
    notes: tuple[str, ...]

    def write(self, target: Path) -> None:
        """A zip file; the same bytes for the same files, so a cluster that has it is not sent it again."""
        with ZipFile(target, "w", ZIP_DEFLATED) as archive:
            for name, path in sorted(self.files.items()):
                with path.open("rb") as source, archive.open(ZipInfo(name), "w") as sink:
                    while block := source.read(2**20):
                        sink.write(block)


def pack(loaded: LoadedSpec, storage: Path) -> Package:
    """Decide what travels; `storage`, where the runs are, does not.

    Raises UserError (too large) or DataError (a data path in the folder is empty).
    """
    base, spec = loaded.base, loaded.spec
    notes: list[str] = []
    files = {_below(str(path), base): path for path in _walk(base, storage, notes)}
    data = _data_below(base, [*spec.data.train, *(spec.data.eval or [])])
    small = _size(data) <= MAX_DATA_BYTES
    files = files | data if small else {name: path for name, path in files.items() if name not in data}
    _require_small(base, files)
    changes = []
    for key, told, travels in (
        ("recipe", spec.recipe, True),
        ("data.train", spec.data.train, small),
        ("data.eval", spec.data.eval, small),
        ("data.preprocess", spec.data.preprocess, True),
        ("init_from.path", spec.init_from and spec.init_from.path, False),
    ):
        texts = told if isinstance(told, list) else [told] if told else []
        stay = [text for text in texts if not (travels and _is_below(text, base))]
        if stay:
            seen = [text if text in stay else _below(text, base) for text in texts]
            changes.append(f"{key}={json.dumps(seen if isinstance(told, list) else seen[0])}")
            notes += [f"not sent: {text}; every node must see it there" for text in stay if "://" not in text]
    return Package(files, tuple(changes), tuple(notes))


def _is_below(text: str, base: Path) -> bool:
    return "://" not in text and Path(os.path.normpath(text)).is_relative_to(base)


def _below(text: str, base: Path) -> str:
    return Path(os.path.normpath(text)).relative_to(base).as_posix()


def _walk(folder: Path, storage: Path, notes: list[str]) -> Iterator[Path]:
    """The files of the folder that are its user's work."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if entry.name.startswith(".") or entry.name == "__pycache__" or path == storage:
            continue
        if entry.is_dir(follow_symlinks=False):
            if not (path / "pyvenv.cfg").exists() and not (path / "run.json").exists():
                yield from _walk(path, storage, notes)
        elif (obstacle := _obstacle(path)) is None:
            yield path
        else:
            notes.append(f"not sent: {path}, {obstacle}")


def _obstacle(path: Path) -> str | None:
    """Why a thing cannot travel; a link to a file can, as that file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"{error.strerror}"
    if stat.S_ISDIR(mode):
        return "a link to a folder"
    if not stat.S_ISREG(mode):
        return "not a regular file"
    return None if os.access(path, os.R_OK) else "not readable"


def _data_below(base: Path, entries: list[str]) -> dict[str, Path]:
    """The data files of the spec inside its folder, also where the walk does not go."""
    found = list_files([entry for entry in entries if _is_below(entry, base) and not is_function(entry)])
    return {_below(file.path, base): Path(file.path) for file in found}


def _size(files: dict[str, Path]) -> int:
    return sum(path.stat().st_size for path in files.values())


def _require_small(base: Path, files: dict[str, Path]) -> None:
    total = _size(files)
    if total <= MAX_BYTES:
        return
    parts: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, path in files.items():
        top = name.split("/")[0]
        parts[top] += path.stat().st_size
        counts[top] += 1
    largest = ", ".join(
        f"{top} ({size / 1e6:.0f} MB in {counts[top]} file{'s' * (counts[top] > 1)})"
        for top, size in parts.most_common(5)
    )
    raise UserError(
        f"{base} is too large to send: {total / 1e6:.0f} MB in {len(files)} files; the limit is "
        f"{MAX_BYTES / 1e6:.0f} MB.",
        f"A job is sent the spec's folder. Largest in it: {largest}.",
        "move these out of the folder, or give the spec and its recipe a folder of their own.",
    )
