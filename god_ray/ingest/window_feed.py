"""Windowed mode: each lane holds the window it is in and the next one, nothing more.

In: a supply. Out: leaves, gathered from windows that a loader thread brings in the order
of first need. A leaf out of turn (audit, replay) is read on the spot and disturbs nothing. Must not know who
carries the rows. A failure in the loader is raised by `leaf`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from god_ray.errors import Bug
from god_ray.ingest.held import Held, Leaf, hold
from god_ray.ingest.sequence import Key, needs
from god_ray.ingest.supply import Supply
from god_ray.ingest.tasks import SameColumns, Task
from god_ray.ingest.window_loader import WindowLoader, task_of
from god_ray.plan import Cursor, Window

Part = tuple[Held, NDArray[np.int64]]


class WindowFeed:
    """A `Feed` whose memory does not grow with the data."""

    def __init__(self, supply: Supply) -> None:
        self.counters = supply.counters
        self._supply, self._plan = supply, supply.plan
        self._loader: WindowLoader | None = None
        self._place: dict[int, tuple[int, int]] = {}

    def start(self, cursor: Cursor, lanes: range) -> None:
        """Go to the cursor. Windows already in memory are used again where they are still needed."""
        kept = self._loader.stop() if self._loader else {}
        start = {lane: self._plan.lane_range(lane, cursor.step_in_epoch)[0] for lane in lanes}
        soon = {key for lane in lanes for key in self._next_keys(lane, cursor.epoch, start[lane])}
        kept = {key: slot for key, slot in kept.items() if key in soon}
        self._place = {lane: self._behind(lane, cursor.epoch, start[lane]) for lane in lanes}
        self._supply.carrier.start(self._worth_carrying(cursor, lanes, frozenset(kept)))
        upcoming = needs(self._plan, cursor, lanes, self._supply.num_steps)
        self._loader = WindowLoader(self._supply, lanes, upcoming, kept)

    def leaf(self, cursor: Cursor, lane: int) -> Leaf | None:
        lo, hi = self._plan.lane_range(lane, cursor.step_in_epoch)
        if lo == hi:
            return None
        loader, epoch = self._loader, cursor.epoch
        place = self._place.get(lane)
        if loader is None or place is None:
            return self._read_now(epoch, lane, lo, hi)
        slot = loader.current(lane)
        in_turn = place == (epoch, lo)
        if slot is not None and slot.covers(epoch, lo, hi):
            held, index = slot.part(lo, hi)
            leaf = held.gather(index)
        elif in_turn:
            leaf = self._across(loader, lane, epoch, lo, hi)
            slot = loader.current(lane)
        else:
            return self._read_now(epoch, lane, lo, hi)
        if in_turn:
            self._place[lane] = self._behind(lane, epoch, hi)
            if slot is not None and 2 * hi >= slot.start + slot.end:
                loader.hurry(lane)
        return leaf

    def close(self) -> None:
        if self._loader is not None:
            self._loader.stop()
        self._loader = None
        self._supply.carrier.close()

    def _next_keys(self, lane: int, epoch: int, position: int) -> list[Key]:
        windows = self._plan.epoch(epoch).windows(lane, position)[:2]
        return [(epoch, lane, window.index) for window in windows]

    def _behind(self, lane: int, epoch: int, position: int) -> tuple[int, int]:
        """The next place of the lane, counted into the next epoch at the end of its stream."""
        length = self._plan.stream_start[lane + 1] - self._plan.stream_start[lane]
        return (epoch, position) if position < length else (epoch + 1, 0)

    def _across(self, loader: WindowLoader, lane: int, epoch: int, lo: int, hi: int) -> Leaf:
        parts: list[Part] = []
        while lo < hi:
            slot = loader.current(lane)
            if slot is None or not slot.covers(epoch, lo, lo + 1):
                slot = loader.next_window(lane)
                if not slot.covers(epoch, lo, lo + 1):
                    raise Bug(f"window {slot.key} came for position {lo} of lane {lane} in epoch {epoch}")
            end = min(hi, slot.end)
            parts.append(slot.part(lo, end))
            lo = end
        return _gather(parts)

    def _read_now(self, epoch: int, lane: int, lo: int, hi: int) -> Leaf:
        """Out of turn: read just the pieces that hold these rows."""
        self.counters["random_reads"] += 1
        order = self._plan.epoch(epoch)
        parts: list[Part] = []
        same_columns = SameColumns()
        for window in order.windows(lane, lo):
            if window.start >= hi:
                break
            wanted = slice(max(lo - window.start, 0), hi - window.start)
            parts.append(self._pick(window, order.window_permutation(window)[wanted], same_columns))
        return _gather(parts)

    def _pick(self, window: Window, index: NDArray[np.int64], same_columns: SameColumns) -> Part:
        """The rows at these places of the window, read from as few pieces as hold them."""
        starts = np.cumsum([0] + [segment.hi - segment.lo for segment in window.segments])
        piece_of = np.searchsorted(starts, index, side="right") - 1
        needed, nth = np.unique(piece_of, return_inverse=True)
        segments = [window.segments[i] for i in needed]
        pieces = tuple(self._supply.source.piece(part.fragment, part.lo, part.hi) for part in segments)
        read_starts = np.cumsum([0] + [piece.rows for piece in pieces])[:-1]
        table = self._supply.direct.read(Task(("random", window.lane, window.index), pieces))
        same_columns(table)
        return hold(table, self._supply.collate), index - starts[piece_of] + read_starts[nth]

    def _worth_carrying(self, cursor: Cursor, lanes: range, held: frozenset[Key]) -> Iterator[Task]:
        """All but the first window of each lane, which is needed before Ray could bring it."""
        begun = set()
        for need in needs(self._plan, cursor, lanes, self._supply.num_steps):
            if need.window.lane in begun and need.key not in held:
                yield task_of(self._supply.source, need)
            begun.add(need.window.lane)


def _gather(parts: list[Part]) -> Leaf:
    held, index = parts[0]
    return held.gather_across(parts) if len(parts) > 1 else held.gather(index)
