"""The one fixed binary tree over L lanes along which everything is summed, whatever the number of workers.

In: lane numbers. Out: where a node divides, and the whole subtrees inside a range. The shape is RFC 6962's:
the largest power of two smaller than the node goes left. Must not know what is summed, or by whom. A mistake
shows as a digest that depends on the number of workers.
"""

from __future__ import annotations


def split(lo: int, hi: int) -> int:
    """The lane at which node [lo, hi), of at least two lanes, divides into [lo, split) and [split, hi)."""
    if hi - lo < 2:
        raise ValueError(f"node [{lo}, {hi}) is a single lane or none: it does not divide")
    return lo + (1 << ((hi - lo - 1).bit_length() - 1))


def subtrees(lo: int, hi: int, lanes: int) -> list[tuple[int, int]]:
    """The maximal subtrees of the tree over [0, lanes) inside [lo, hi), in order; <= 2*ceil(log2 lanes)."""
    if not 0 <= lo <= hi <= lanes:
        raise ValueError(f"[{lo}, {hi}) is not inside the {lanes} lanes")
    found: list[tuple[int, int]] = []

    def visit(left: int, right: int) -> None:
        if left >= hi or right <= lo:
            return
        if lo <= left and right <= hi:
            found.append((left, right))
            return
        middle = split(left, right)
        visit(left, middle)
        visit(middle, right)

    visit(0, lanes)
    return found
