"""A ledger folder's copy in a store: what lets a run go on where this machine's disk is not.

In: the local folder, which only its writer changes, and the store of the run. Out: `push` makes durable there
what was published here; `pull` makes this folder hold all that was ever pushed, and keeps what it has beyond
that. Must not know what a record means. Failure shows as the store's OSError.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from god_ray.errors import RunFailed
from god_ray.monitor import lines, lock
from god_ray.storage.store import Store, write_bytes

PLACE = "ledger"


def push(folder: Path, store: Store) -> None:
    """Every whole line that is in the folder now is durable in the store when this returns."""
    live = _live(folder)  # before the segments are listed: what is sealed in between is then seen twice
    there = store.list(PLACE)
    last = 0
    for segment in lines.segments(folder):
        name = f"{PLACE}/{segment.path.name}"
        if name not in there:
            write_bytes(store, name, segment.path.read_bytes())
        last = segment.last
    unsealed = b"".join(line for line in live if lines.step_of(line) > last)
    if unsealed or f"{PLACE}/{lines.LIVE}" in there:
        write_bytes(store, f"{PLACE}/{lines.LIVE}", unsealed)


def pull(folder: Path, store: Store) -> None:
    """Nothing is done while a writer is at work in this folder: it has the newest lines itself."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        handle = lock.acquire(folder / ".lock", 0)
    except RunFailed:
        return
    try:
        _pull(folder, store)
    finally:
        lock.release(handle)


def _pull(folder: Path, store: Store) -> None:
    there = {name.rpartition("/")[2]: size for name, size in store.list(PLACE).items()}
    sealed = max((s.last for name in there if (s := lines.segment(folder / name))), default=0)
    kept = store.read(f"{PLACE}/{lines.LIVE}") if lines.LIVE in there else b""
    unsealed = {lines.step_of(line): line for line in kept.splitlines(keepends=True)}
    unsealed |= {step: line for step, line in _own(folder) if step not in unsealed}
    content = b"".join(unsealed[step] for step in sorted(unsealed) if step > sealed)
    for name, size in there.items():
        path = folder / name
        if lines.segment(path) and not (path.exists() and path.stat().st_size == size):
            path.with_suffix(".tmp").write_bytes(store.read(f"{PLACE}/{name}"))
            path.with_suffix(".tmp").rename(path)
    new = folder / "live.tmp"
    new.write_bytes(content)
    new.rename(folder / lines.LIVE)
    for segment in lines.segments(folder):
        if segment.path.name not in there:  # its lines are in the live file, or in the store's segments
            segment.path.unlink()


def _own(folder: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of this machine, perhaps some that no other has."""
    for segment in lines.segments(folder):
        for line in segment.path.read_bytes().splitlines(keepends=True):
            yield lines.step_of(line), line
    for line in _live(folder):
        yield lines.step_of(line), line


def _live(folder: Path) -> list[bytes]:
    """Whole lines."""
    try:
        content = (folder / lines.LIVE).read_bytes()
    except FileNotFoundError:
        return []
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
