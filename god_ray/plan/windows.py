"""The windows of one lane: which parts of which fragments are read and shuffled together.

In: an epoch's order of fragments and a lane's slice of it. Out: `Windows`, a sequence that makes a `Window`
only when asked for it (a million fragments cost nothing up front). Must not know steps, files or how rows are
read. A mistake shows as `RowsMismatch`: rows delivered that the plan's `row_numbers` does not name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from god_ray.plan.permutation import permutation


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows [lo, hi) of a fragment, counted inside the fragment."""

    fragment: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Window:
    """Stream positions [start, start + rows) of the lane; its segments' rows, in reading order."""

    lane: int
    index: int
    start: int
    rows: int
    segments: tuple[Segment, ...]


def window_permutation(window: Window, seed: int, epoch: int) -> NDArray[np.int64]:
    """(rows,): entry i is the place, in reading order, of the row used at stream position start + i."""
    return permutation(window.rows, seed, epoch, 1, window.lane, window.index)


class Windows(Sequence[Window]):
    """A lane's windows in order, from the first that ends behind `from_position`; made when taken."""

    def __init__(
        self,
        lane: int,
        span: tuple[int, int],
        order: NDArray[np.int64],
        begin: NDArray[np.int64],
        size: int,
        from_position: int = 0,
    ) -> None:
        """span: the lane's [lo, hi) in the epoch order of rows; order: (F,) fragments in the epoch's order;
        begin: (F + 1,) where each of them begins in the epoch order of rows; size: fragments per window.
        """
        self._lane, self._span, self._order, self._begin, self._size = lane, span, order, begin, size
        lo, hi = span
        self._first = self._place(lo)
        self._behind = self._place(hi - 1) + 1 if hi > lo else self._first
        total = -(-(self._behind - self._first) // size)
        wanted = lo + max(from_position, 0)
        self._skipped = (self._place(wanted) - self._first) // size if wanted < hi else total
        self._count = total - self._skipped

    def _place(self, row: int) -> int:
        """Where, in the epoch's order of fragments, the one that holds this row of the epoch order is."""
        return int(np.searchsorted(self._begin, row, side="right")) - 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Window]:
        return (self._make(self._skipped + i) for i in range(self._count))

    @overload
    def __getitem__(self, at: int) -> Window: ...
    @overload
    def __getitem__(self, at: slice) -> list[Window]: ...
    def __getitem__(self, at: int | slice) -> Window | list[Window]:
        if isinstance(at, slice):
            return [self._make(self._skipped + i) for i in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(f"window {at} of {self._count}")
        return self._make(self._skipped + at % self._count)

    def _make(self, index: int) -> Window:
        lo, hi = self._span
        first = self._first + index * self._size
        behind = min(first + self._size, self._behind)
        fragments = self._order[first:behind].tolist()
        edges = self._begin[first : behind + 1].tolist()
        segments = tuple(
            Segment(fragment, max(lo - begin, 0), min(hi, end) - begin)
            for fragment, begin, end in zip(fragments, edges, edges[1:], strict=False)
        )
        start, end = max(edges[0], lo), min(edges[-1], hi)
        return Window(self._lane, index, start - lo, end - start, segments)
