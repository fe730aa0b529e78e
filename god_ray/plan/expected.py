"""The row checksum that the plan gives each step: what the measured ones in a ledger must be equal to.

In: one epoch's plan. Out: a uint64 per step. Whole streams are hashed at once instead of leaf by leaf, in
memory that does not grow with the data (but for the permutation that shuffle "full" has anyway).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from god_ray.plan.order import EpochPlan
from god_ray.plan.rows import row_hash

_CHUNK_ROWS = 1 << 18


def step_checksums(epoch: EpochPlan, num_steps: int) -> NDArray[np.uint64]:
    """(num_steps,): for each of the epoch's first steps the sum of its rows' hashes mod 2**64."""
    steps = epoch.plan.steps
    if not 0 <= num_steps <= steps.count:
        raise IndexError(f"{num_steps} steps of an epoch of {steps.count}")
    sums = np.zeros(num_steps, dtype=np.uint64)
    for lane in range(epoch.plan.lanes if num_steps else 0):
        stop = epoch.plan.lane_range(lane, num_steps - 1)[1]
        for start, rows in _stream(epoch, lane, stop):
            _add(sums, start, row_hash(rows[: stop - start]), steps.full[lane], steps.count)
    return sums


def _stream(epoch: EpochPlan, lane: int, stop: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(position, row numbers) of consecutive parts of the lane's stream, up to position `stop`."""
    if epoch.plan.shuffle == "full":
        base = epoch.plan.stream_start[lane]
        for lo in range(0, stop, _CHUNK_ROWS):
            yield lo, epoch.permutation[base + lo : base + min(lo + _CHUNK_ROWS, stop)]
        return
    for window in epoch.windows(lane):
        if window.start >= stop:
            return
        yield window.start, epoch._window_rows(lane, window.index)


def _add(sums: NDArray[np.uint64], start: int, hashes: NDArray[np.uint64], full: int, count: int) -> None:
    """Add hashes at stream positions from `start` on to their steps: `full` each, the last takes the rest."""
    if not len(hashes):
        return
    first = min(start // full, count - 1) if full else count - 1
    last = min((start + len(hashes) - 1) // full, count - 1) if full else count - 1
    edges = np.maximum(np.arange(first, last + 1) * full - start, 0)
    sums[first : last + 1] += np.add.reduceat(hashes, edges)
