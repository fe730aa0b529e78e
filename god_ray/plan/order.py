"""The data plan: which rows each lane uses in each step, a pure function of what the spec and manifest say.

In: a manifest and the spec's data settings. Out: `DataPlan` (arithmetic over steps) and `EpochPlan` (one
epoch's order). Must not know workers, files or Ray: resuming anywhere with any number of workers is
arithmetic on a cursor. A mistake shows as `RowsMismatch` in training, or in `god-ray verify` as a step whose
checksum is not the plan's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from god_ray.plan.cursor import Cursor
from god_ray.plan.manifest import Manifest
from god_ray.plan.permutation import permutation
from god_ray.plan.steps import Steps, divide
from god_ray.plan.windows import Window, Windows, window_permutation

Shuffle = Literal["full", "window", "none"]

# Third word of each Philox key, so that no two draws share a stream. 1 is `window_permutation`'s.
_FRAGMENTS, _ROWS = 0, 2


@dataclass(frozen=True, eq=False)
class DataPlan:
    """The order of a whole run. Small but for the manifest; picklable; safe to use from several threads."""

    manifest: Manifest
    batch_size: int
    """Rows of the global batch."""
    lanes: int
    seed: int
    shuffle: Shuffle
    window: int
    """Fragments per window; "full" does not use it."""
    min_leaf_rows: int
    """A tail that would leave a leaf with fewer rows joins the last full step."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "lanes", "window", "min_leaf_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed} must not be negative")
        if self.shuffle not in get_args(Shuffle):
            raise ValueError(f"shuffle = {self.shuffle!r} must be one of {', '.join(get_args(Shuffle))}")
        _ = self.steps  # refuse fewer rows than one batch here, not at the first step

    @cached_property
    def steps(self) -> Steps:
        """Rows per lane in the full steps and in the last one."""
        return divide(self.manifest.num_rows, self.batch_size, self.lanes, self.min_leaf_rows)

    @property
    def steps_per_epoch(self) -> int:
        return self.steps.count

    @cached_property
    def stream_start(self) -> tuple[int, ...]:
        """(lanes + 1): lane v's stream is [stream_start[v], stream_start[v + 1]) of the epoch order."""
        return tuple(accumulate((self.steps.rows(lane) for lane in range(self.lanes)), initial=0))

    def leaf_rows(self, step_in_epoch: int) -> tuple[int, ...]:
        """Rows of each lane in that step; 0 is an absent leaf."""
        if not 0 <= step_in_epoch < self.steps.count:
            raise IndexError(f"step {step_in_epoch} is not in an epoch of {self.steps.count} steps")
        return self.steps.last if step_in_epoch == self.steps.count - 1 else self.steps.full

    def lane_range(self, lane: int, step_in_epoch: int) -> tuple[int, int]:
        """The [lo, hi) of the lane's stream that this step uses."""
        self._check_lane(lane)
        lo = step_in_epoch * self.steps.full[lane]
        return lo, lo + self.leaf_rows(step_in_epoch)[lane]

    def cursor_at(self, step: int) -> Cursor:
        """The position after `step` committed steps."""
        if step < 0:
            raise IndexError(f"step {step} is negative")
        epoch, step_in_epoch = divmod(step, self.steps.count)
        return Cursor(epoch, step_in_epoch, step)

    def epoch(self, epoch: int) -> EpochPlan:
        """That epoch's order; the last two asked for are kept."""
        if epoch < 0:
            raise IndexError(f"epoch {epoch} is negative")
        return self._epochs(epoch)

    @cached_property
    def _epochs(self) -> Callable[[int], EpochPlan]:
        return lru_cache(maxsize=2)(lambda epoch: EpochPlan(self, epoch))

    def _check_lane(self, lane: int) -> None:
        if not 0 <= lane < self.lanes:
            raise IndexError(f"lane {lane} is not one of {self.lanes}")

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.batch_size, self.lanes, self.seed, self.shuffle, self.window, self.min_leaf_rows)
        return type(self), (self.manifest, *fields)


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """One epoch's order of all rows. Its arrays are made when first needed and never changed."""

    plan: DataPlan
    epoch: int

    def row_numbers(self, lane: int, step_in_epoch: int) -> NDArray[np.int64]:
        """THE definition of the order: the leaf's global row numbers in training order, in any mode."""
        lo, hi = self.plan.lane_range(lane, step_in_epoch)
        if self.plan.shuffle == "full":
            base = self.plan.stream_start[lane]
            return self.permutation[base + lo : base + hi].copy()
        parts = [
            self._window_rows(lane, window.index)[max(lo - window.start, 0) : hi - window.start]
            for window in self._between(lane, lo, hi)
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def windows(self, lane: int, from_position: int = 0) -> Sequence[Window]:
        """The lane's windows that hold a row at or after that position, in order, each made when taken."""
        if self.plan.shuffle == "full":
            raise ValueError('shuffle = "full" has no windows: every leaf may touch every fragment')
        self.plan._check_lane(lane)
        span = (self.plan.stream_start[lane], self.plan.stream_start[lane + 1])
        return Windows(lane, span, self._fragments, self._begin, self.plan.window, from_position)

    def window_permutation(self, window: Window) -> NDArray[np.int64]:
        """(rows,): entry i is the place, in reading order, of the row used at stream position start + i."""
        if self.plan.shuffle == "none":
            return np.arange(window.rows, dtype=np.int64)
        return window_permutation(window, self.plan.seed, self.epoch)

    @cached_property
    def permutation(self) -> NDArray[np.int64]:
        """(num_rows,) for "full": the epoch order of global row numbers. 8 bytes a row."""
        rows = permutation(self.plan.manifest.num_rows, self.plan.seed, self.epoch, _ROWS)
        rows.flags.writeable = False
        return rows

    @cached_property
    def _fragments(self) -> NDArray[np.int64]:
        """(F,) the fragments in the order of this epoch."""
        count = self.plan.manifest.num_fragments
        if self.plan.shuffle == "none":
            return np.arange(count, dtype=np.int64)
        return permutation(count, self.plan.seed, self.epoch, _FRAGMENTS)

    @cached_property
    def _begin(self) -> NDArray[np.int64]:
        """(F + 1,) where each of `_fragments` begins in the epoch order of rows."""
        begin = np.zeros(len(self._fragments) + 1, dtype=np.int64)
        np.cumsum(self.plan.manifest.rows[self._fragments], out=begin[1:])
        return begin

    def _between(self, lane: int, lo: int, hi: int) -> Iterator[Window]:
        for window in self.windows(lane, lo):
            if window.start >= hi:
                return
            yield window

    @cached_property
    def _window_rows(self) -> Callable[[int, int], NDArray[np.int64]]:
        """(lane, window index) -> the window's global row numbers in training order; the last 64 are kept."""

        def rows(lane: int, index: int) -> NDArray[np.int64]:
            window = self.windows(lane)[index]
            start = self.plan.manifest.start
            read = [
                np.arange(start[part.fragment] + part.lo, start[part.fragment] + part.hi, dtype=np.int64)
                for part in window.segments
            ]
            return np.concatenate(read)[self.window_permutation(window)]

        return lru_cache(maxsize=64)(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plan, self.epoch)
