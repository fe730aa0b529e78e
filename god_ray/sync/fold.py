"""One order of addition for everything that is summed over lanes.

`fold` walks the fixed binary tree of `god_ray.plan.tree` over [lo, hi) and merges children left to right; a
node that is already known is not entered. Values may be tensors, floats or None (absent): an absent child
leaves the other as it is, bit for bit. Must not know who computed a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from god_ray.plan.tree import split

T = TypeVar("T")
Node = tuple[int, int]


def fold(
    node: Node,
    known: Callable[[Node], tuple[bool, T | None]],
    merge: Callable[[Node, T, T], T],
) -> T | None:
    """The value of `node`: as `known` says (True, value), else its two children merged."""
    found, value = known(node)
    if found:
        return value
    lo, hi = node
    middle = split(lo, hi)
    left = fold((lo, middle), known, merge)
    right = fold((middle, hi), known, merge)
    if left is None or right is None:
        return right if left is None else left
    return merge(node, left, right)


def fold_floats(values: list[float | None]) -> float | None:
    """Sum of one float64 per lane along the tree; None marks an absent lane."""
    return fold(
        (0, len(values)),
        lambda node: (node[1] - node[0] == 1, values[node[0]]),
        lambda _node, left, right: left + right,
    )
