"""The files that a run in a store has on this machine, where they can be locked, appended to and looked at.

In: the run's place and its store. Out: a folder in the user's cache, and small files that go up or come down.
The store is what counts: the folder may be removed while nobody uses it. Must not know what the files say.
Failure shows as the store's OSError.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from god_ray.storage.store import Store, write_bytes

SMALL = ("spec.yaml", "run.json")
SOMETIMES = ("fitted.json",)
_counter = itertools.count()


def folder(place: str) -> Path:
    """Always the same one for one place, with the run's name at its end."""
    path = place.partition("?")[0].rstrip("/")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "god_ray" / hashlib.sha256(place.encode()).hexdigest()[:16] / path.rpartition("/")[2]


def push(path: Path, store: Store, names: Iterable[str]) -> None:
    for name in names:
        write_bytes(store, name, (path / name).read_bytes())


def pull(path: Path, store: Store, names: Iterable[str] = (*SMALL, *SOMETIMES)) -> None:
    """Several threads and processes may do so at once."""
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            _keep(path, name, store.read(name))
        except FileNotFoundError:
            if name not in SOMETIMES:
                raise


def _keep(path: Path, name: str, content: bytes) -> None:
    """Nobody ever sees half of it."""
    work = path / f".{name}.{os.getpid()}-{next(_counter)}.down"
    work.write_bytes(content)
    work.rename(path / name)
