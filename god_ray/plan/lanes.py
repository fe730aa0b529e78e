"""Which worker drives which lanes.

In: lanes L, workers W. Out: W contiguous ranges that cover [0, L). Must not know workers' names or nodes: any
answer gives the same bits, a good one gives short messages and even work. A bad one shows as `exchange_s` in
the ledger.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from god_ray.plan.tree import subtrees

_NEVER = 1 << 30


def worker_lanes(lanes: int, workers: int) -> list[tuple[int, int]]:
    """Contiguous [lo, hi) per worker, in rank order. Raises ValueError unless 1 <= workers <= lanes.

    The fewest subtrees for the worker that has most (they are what a worker must send), then the fewest lanes
    for the worker that has most, then the most even sizes, then the fewest subtrees in all. The largest range
    is at most one lane above ceil(L / W), and sizes differ by at most 2.
    """
    if not 1 <= workers <= lanes:
        raise ValueError(f"{workers} workers can't share {lanes} lanes: each needs one")
    return list(_worker_lanes(lanes, workers))


@lru_cache(maxsize=256)
def _worker_lanes(lanes: int, workers: int) -> tuple[tuple[int, int], ...]:
    small, large = lanes // workers, -(-lanes // workers)
    # Smallest and largest size allowed, by what it costs the slowest worker: nothing, nothing, one lane.
    choices = ((small, large), (max(large - 2, 1), large), (max(large - 1, 1), large + 1))
    for worst in range(1, 2 * lanes.bit_length() + 1):
        for least, most in choices:
            sizes = _sizes(lanes, workers, range(most, least - 1, -1), worst)
            if sizes:
                return tuple(pairwise(accumulate(sizes, initial=0)))
    raise AssertionError("even sizes are always possible")


def _sizes(lanes: int, workers: int, allowed: range, worst: int) -> list[int]:
    """Sizes of `workers` ranges with at most `worst` subtrees each and the fewest in all; empty if none.

    Backwards over the workers: `best[lane]` is the fewest subtrees with which the rest cover [lane, lanes).
    """
    cost = {size: _costs(lanes, size, worst) for size in allowed}
    best = np.full(lanes + 1, _NEVER, dtype=np.int64)
    best[lanes] = 0
    picks = []
    for _ in range(workers):
        options = np.full((len(allowed), lanes + 1), _NEVER, dtype=np.int64)
        for row, size in enumerate(allowed):
            options[row, : lanes + 1 - size] = best[size:] + cost[size]
        picks.append(options.argmin(axis=0))
        best = np.minimum(options.min(axis=0), _NEVER)
    if best[0] >= _NEVER:
        return []
    sizes: list[int] = []
    for pick in reversed(picks):
        sizes.append(allowed[int(pick[sum(sizes)])])
    return sizes


@lru_cache(maxsize=64)
def _costs(lanes: int, size: int, worst: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """(lanes + 1 - size): subtrees of the range of that size at each lane; _NEVER above `worst`."""
    counts = [len(subtrees(lo, lo + size, lanes)) for lo in range(lanes + 1 - size)]
    return np.array([count if count <= worst else _NEVER for count in counts], dtype=np.int64)
