"""How many rows each lane takes in each step of an epoch.

In: rows, batch size, lanes. Out: `Steps`: every step but the last has exactly the global batch, nothing is
dropped or padded. Must not know which rows they are, or workers. A mistake shows as `num_rows` in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass


def shares(total: int, lanes: int) -> tuple[int, ...]:
    """`total` spread over lanes, each within one of even: lane v gets total*(v+1)//lanes - total*v//lanes."""
    return tuple(total * (v + 1) // lanes - total * v // lanes for v in range(lanes))


@dataclass(frozen=True)
class Steps:
    """`count` steps: `full` rows per lane in each of the first count - 1, `last` in the last one."""

    count: int
    full: tuple[int, ...]
    last: tuple[int, ...]

    def rows(self, lane: int) -> int:
        """Length of the lane's stream: its rows in the whole epoch."""
        return (self.count - 1) * self.full[lane] + self.last[lane]


def divide(num_rows: int, batch_size: int, lanes: int, min_leaf_rows: int) -> Steps:
    """F = num_rows div batch_size full steps and a tail of R rows, packed into the lowest lanes.

    If packing leaves a leaf with fewer than `min_leaf_rows` rows (1 row breaks BatchNorm, and losses that
    compare rows), all R rows join the last full step instead, spread evenly. Raises ValueError below one full
    batch.
    """
    if num_rows < batch_size:
        raise ValueError(f"{num_rows} rows are fewer than one batch of {batch_size}")
    full_steps, rest = divmod(num_rows, batch_size)
    full = shares(batch_size, lanes)
    if not rest:
        return Steps(full_steps, full, full)
    tail = _pack(rest, full)
    if not any(0 < rows < min_leaf_rows for rows in tail):
        return Steps(full_steps + 1, full, tail)
    joined = tuple(own + more for own, more in zip(full, shares(rest, lanes), strict=True))
    return Steps(full_steps, full, joined)


def _pack(rest: int, full: tuple[int, ...]) -> tuple[int, ...]:
    tail = []
    for room in full:
        tail.append(min(room, rest))
        rest -= tail[-1]
    return tuple(tail)
