"""The ledger of a run: one JSON line per published step, written once, in order, without gaps.

In: records with `step` counted from 1. Out: "new", or "same" for a replayed step that equals its old line.
Must not know how a record came about. Failure shows as LedgerMismatch (a replayed step differs), Bug (a gap)
or RunFailed (the disk is full, or another process writes). Standard library only; reading is in `lines`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from god_ray import durable
from god_ray.errors import Bug, LedgerMismatch, RunFailed
from god_ray.monitor import lines, lock

log = logging.getLogger(__name__)

LOCK_PATIENCE_S = 30.0
# Facts about how a step was done, not about what it did: these may differ when it is done again.
CIRCUMSTANCES = frozenset({"timings", "generation", "num_workers", "at"})
# What law 1 fixes even where rounding differs (determinism: relaxed).
ROWS = ("epoch", "step_in_epoch", "num_rows", "row_checksum")

_SHOWN = 5
_BEGINNING = re.compile(rb'\{"step":([1-9]\d*),.*\}\n')

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Ledger:
    """The one writer, from `open_writer` to `close`. `last_step`: the newest published step, 0 if none."""

    def __init__(self, folder: Path, lock_handle: int, exact: bool) -> None:
        self.folder = folder
        self._lock, self._exact = lock_handle, exact
        segments = lines.segments(folder)
        self._live = _open(folder / lines.LIVE)
        try:
            self._size, live_last = _mend(self._live, folder / lines.LIVE)
            _require_each_step_once(folder, segments)
        except BaseException:
            os.close(self._live)
            raise
        self._sealed = segments[-1].last if segments else 0
        self.last_step = live_last or self._sealed
        self._old: Iterator[dict[str, Any]] = iter(())
        self._old_next = 0

    @classmethod
    def open_writer(cls, folder: Path, *, exact: bool = True, patience_s: float = LOCK_PATIENCE_S) -> Ledger:
        """Take the lock (RunFailed naming the holder after `patience_s`); drop a line that a writer tore.

        RunFailed, too, if steps are missing or double, by the live file's lines and the segments' names.
        exact=False (determinism: relaxed) compares only the rows of replayed steps, not loss and digest.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        handle = lock.acquire(folder / ".lock", patience_s)
        try:
            return cls(folder, handle, exact)
        except BaseException:
            lock.release(handle)
            raise

    def publish(self, record: Mapping[str, Any]) -> Literal["new", "same"]:
        """Write the next step's line, or compare with the line that is there. One write; fsync is `sync`."""
        step = record["step"]
        line = _line(record)
        if step == self.last_step + 1:
            self._append(step, line)
            return "new"
        if step > self.last_step or step < 1:
            raise Bug(
                f"step {step} was published after step {self.last_step}",
                "the ledger has each step once, in order, without gaps",
                "report this with the run's logs",
            )
        self._compare(step, json.loads(line))
        return "same"

    def sync(self) -> None:
        """Make all lines durable. Call it before a checkpoint becomes visible: that must not outlive them.

        From any thread: it opens the file itself, so `seal` cannot close it underneath.
        """
        with suppress(FileNotFoundError):  # being sealed this moment, which syncs too
            durable.sync(self.folder / lines.LIVE)

    def seal(self) -> None:
        """Close the live part as an immutable segment, "<first>-<last>.jsonl"."""
        if self._size == 0:
            return
        os.fsync(self._live)
        os.close(self._live)
        name = lines.segment_name(self._sealed + 1, self.last_step)
        os.rename(self.folder / lines.LIVE, self.folder / name)
        self._sealed, self._size = self.last_step, 0
        self._live = os.open(self.folder / lines.LIVE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        durable.sync(self.folder)

    def close(self) -> None:
        """Let go of the lock. What was published stays."""
        if self._live >= 0:
            os.close(self._live)
            lock.release(self._lock)
            self._live = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def read(folder: Path, from_step: int = 0) -> Iterator[dict[str, Any]]:
        """Records from `from_step` on, without a lock, while a writer goes on; never a torn one.

        NaN and infinities are the strings "NaN", "Infinity", "-Infinity", which `float` reads.
        """
        return lines.read(Path(folder), from_step)

    @staticmethod
    def tail(folder: Path, from_step: int = 0) -> lines.Follower:
        return lines.Follower(Path(folder), from_step)

    # ---- inside

    def _append(self, step: int, line: bytes) -> None:
        try:
            written = os.write(self._live, line)
            cause = "the disk took only part of the line" if written < len(line) else ""
        except OSError as error:
            cause = str(error)
        if cause:
            os.ftruncate(self._live, self._size)  # never leave half a line, not even a full disk's
            raise RunFailed(
                f"the ledger line of step {step} could not be written under {self.folder}",
                cause,
                "make room, then resume: all published steps are there",
                final=True,
            )
        self._size += written
        self.last_step = step

    def _compare(self, step: int, new: dict[str, Any]) -> None:
        old = self._line_of(step)
        keys = (old.keys() | new.keys()) - CIRCUMSTANCES if self._exact else ROWS
        for key in sorted(keys):
            then, now = old.get(key), new.get(key)
            if then == now or (key == "digest" and None in (then, now)):  # a digest is taken now and then
                continue
            raise LedgerMismatch(
                f"step {step} was done again and {key} is {now!r}; the ledger says {then!r}",
                "a replayed step must give the same result to the last bit"
                if self._exact
                else "a replayed step must use the same rows",
                "look for a changed library, thread count, recipe or data file; then `god-ray verify`",
                step=step,
                key=key,
                old=then,
                new=now,
            )

    def _line_of(self, step: int) -> dict[str, Any]:
        """Replay goes forward, so the old lines are read in one pass."""
        if step != self._old_next:
            self._old = lines.read(self.folder, step)
        self._old_next = step + 1
        return next(self._old)


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        text = _encode(record)
    except ValueError:  # a NaN or an infinity, which JSON does not have
        text = _encode(_finite(record))
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunFailed(
            f"{path} cannot be opened for writing",
            f"{error.strerror}",
            "make it a file that can be written (restore it from a copy if it was replaced), then resume",
            final=True,
        ) from error


def _require_each_step_once(folder: Path, segments: Sequence[lines.Segment]) -> None:
    """Raises RunFailed: a run that went on behind such a ledger would end as if it were whole."""
    faults: list[str] = []
    wanted = 1
    for part in (*segments, *_stretches(folder / lines.LIVE)):
        if part.first > wanted:
            faults.append(f"{_named(wanted, part.first - 1)} missing before step {part.first} of {part.path}")
        elif part.first < wanted:
            faults.append(f"{_named(part.first, min(part.last, wanted - 1))} double in {part.path}")
        wanted = max(wanted, part.last + 1)
    if faults:
        more = [f"and {len(faults) - _SHOWN} more faults like these"] if len(faults) > _SHOWN else []
        raise RunFailed(
            f"the ledger under {folder} does not have each step once",
            "; ".join(faults[:_SHOWN] + more),
            "restore the file from a copy; god-ray verify says what is left",
            final=True,
        )


def _stretches(path: Path) -> Iterator[lines.Segment]:
    """The live file's lines in stretches of consecutive steps. A damaged line is a missing one."""
    first = last = 0
    with open(path, "rb") as file:
        for line in file:
            # Ten times faster than to read the whole record.
            match = _BEGINNING.fullmatch(line)
            step = int(match[1]) if match else lines.step_of(line)
            if step == last + 1 and first:
                last = step
            elif step:
                if first:
                    yield lines.Segment(first, last, path)
                first = last = step
    if first:
        yield lines.Segment(first, last, path)


def _named(first: int, last: int) -> str:
    return f"step {first} is" if first == last else f"steps {first} to {last} are"


def _mend(handle: int, path: Path) -> tuple[int, int]:
    """Cut off what a killed writer (half a line) or a power cut (garbage) left: (size, last step or 0)."""
    size = os.fstat(handle).st_size
    content = os.pread(handle, size, 0)
    whole = content[: content.rfind(b"\n") + 1]
    last = 0
    while whole:
        start = whole.rfind(b"\n", 0, -1) + 1
        step = lines.step_of(whole[start:])
        if step:
            last = step
            break
        whole = whole[:start]
    if len(whole) < size:
        log.warning("dropped %d bytes of an unfinished line at the end of %s", size - len(whole), path)
        os.ftruncate(handle, len(whole))
    return len(whole), last
