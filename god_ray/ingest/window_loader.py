"""The thread that brings each lane's windows, in the order of first need, at most two per lane ahead.

In: a sequence of windows, a carrier. Out: `next_window` for the trainer's thread. Must not know steps or
batches. A failure while reading is raised by `next_window`, never swallowed, never a hang.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from god_ray.errors import Bug
from god_ray.ingest.background import Background
from god_ray.ingest.carrier import Abandoned
from god_ray.ingest.held import Held, hold
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.sequence import Key, Need
from god_ray.ingest.supply import Supply
from god_ray.ingest.tasks import SameColumns, Task

_MAX_HELD = 2
"""Windows per lane: the current one and the next."""


@dataclass(slots=True)
class Slot:
    """A window in memory: positions [start, end) of its lane's stream."""

    key: Key
    start: int
    end: int
    held: Held
    permutation: NDArray[np.int64]

    def covers(self, epoch: int, lo: int, hi: int) -> bool:
        return self.key[0] == epoch and self.start <= lo and hi <= self.end

    def part(self, lo: int, hi: int) -> tuple[Held, NDArray[np.int64]]:
        """The block and the places in it of positions [lo, hi)."""
        return self.held, self.permutation[lo - self.start : hi - self.start]


@dataclass(slots=True)
class _Lane:
    current: Slot | None = None
    ready: deque[Slot] = field(default_factory=deque)
    hurry: bool = False
    """The current window is half used: the next one, if nobody has brought it, the worker reads itself."""

    @property
    def slots(self) -> list[Slot]:
        return [*([self.current] if self.current else []), *self.ready]


class WindowLoader:
    """One per start of the feed."""

    def __init__(
        self, supply: Supply, lanes: range, upcoming: Iterator[Need], kept: Mapping[Key, Slot]
    ) -> None:
        """kept: windows already in memory; those that are needed again are not read again."""
        self._supply, self._changed, self._kept = supply, supply.changed, dict(kept)
        self._lanes = {lane: _Lane() for lane in lanes}
        self._stopped = False
        self._waiting: _Lane | None = None
        self._same_columns = SameColumns()
        self._thread = Background(
            lambda: self._load(upcoming), "god_ray-load", when_done=lambda _: self._notify()
        )

    def current(self, lane: int) -> Slot | None:
        return self._lanes[lane].current

    def next_window(self, lane: int) -> Slot:
        """Let go of the lane's current window and wait for the next. Raises what the thread ended with."""
        state = self._lanes[lane]
        with self._changed:
            state.current = None
            self._changed.notify_all()
            if not state.ready:
                self._waiting = state
                begin = time.monotonic()
                self._changed.wait_for(lambda: state.ready or self._thread.done)
                self._supply.counters["waits"] += 1
                self._supply.counters["waited_s"] += time.monotonic() - begin
                self._waiting = None
            if state.ready:
                state.current = state.ready.popleft()
                state.hurry = False
                return state.current
        self._thread.result()
        raise Bug(f"lane {lane} has no further window", "The feed was opened for fewer steps.")

    def hurry(self, lane: int) -> None:
        """The lane's current window is half used."""
        if not self._lanes[lane].hurry:
            self._lanes[lane].hurry = True
            self._notify()

    def stop(self) -> dict[Key, Slot]:
        """End the thread; returns the windows that are in memory."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(timeout_s=10)
        held = {slot.key: slot for lane in self._lanes.values() for slot in lane.slots}
        return {**self._kept, **held}

    def _load(self, upcoming: Iterator[Need]) -> None:
        for need in upcoming:
            state = self._lanes[need.window.lane]
            with self._changed:
                self._changed.wait_for(partial(self._has_room, state))
            if self._stopped:
                return
            slot = self._kept.pop(need.key, None) or self._bring(need, state)
            if slot is None:
                return
            with self._changed:
                state.ready.append(slot)
                self._changed.notify_all()

    @property
    def _starving(self) -> bool:
        """The trainer waits for a window that is not there: whatever the thread is at is due."""
        return self._waiting is not None and not self._waiting.ready

    def _has_room(self, state: _Lane) -> bool:
        # A starving reader may want a later window: then the bound gives way, rather than a deadlock.
        return self._stopped or self._starving or len(state.slots) < _MAX_HELD

    def _bring(self, need: Need, state: _Lane) -> Slot | None:
        def patience() -> float | None:
            if self._stopped:
                raise Abandoned
            return 0.0 if state.hurry or self._starving or not state.slots else None

        try:
            table = self._supply.carrier.get(task_of(self._supply.source, need), patience)
        except Abandoned:
            return None
        self._same_columns(table)
        window = need.window
        permutation = self._supply.plan.epoch(need.epoch).window_permutation(window)
        held = hold(table, self._supply.collate)
        return Slot(need.key, window.start, window.start + window.rows, held, permutation)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def task_of(source: ParquetSource, need: Need) -> Task:
    """The window as it is read: whole."""
    return Task(
        need.key, tuple(source.piece(part.fragment, part.lo, part.hi) for part in need.window.segments)
    )
