"""What the data set consists of: fragments, each a range of rows inside one Parquet row group.

In: row counts that a source read from the footers. Out: `Manifest`, arrays of one entry per fragment, and the
global row numbers (rows counted through all fragments in source order). Must not know order, lanes or how
files are read. A wrong manifest shows as a fingerprint that differs on resume, or as `RowsMismatch` on the
first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_FRAGMENT_ROWS = 16_384


@dataclass(frozen=True, eq=False, repr=False)
class Manifest:
    """F fragments. Row r of fragment f is row offset[f] + r of its row group, and globally start[f] + r."""

    files: tuple[str, ...]
    """In source order."""
    file: NDArray[np.int32]
    """(F,) index into `files`."""
    group: NDArray[np.int32]
    """(F,) row group inside the file."""
    offset: NDArray[np.int64]
    """(F,) first row inside the row group."""
    rows: NDArray[np.int64]
    """(F,) number of rows, 1 .. MAX_FRAGMENT_ROWS."""
    fingerprint: str
    """Hex over relative paths, sizes, counts and schema; computed by the source."""

    def __post_init__(self) -> None:
        lengths = {len(self.file), len(self.group), len(self.offset), len(self.rows)}
        if len(lengths) != 1:
            raise ValueError(f"a manifest's arrays must have one length, got {sorted(lengths)}")
        if len(self.rows) and int(self.rows.min()) < 1:
            raise ValueError("a fragment without rows has no place in the order: leave it out")
        if len(self.file) and not 0 <= int(self.file.min()) <= int(self.file.max()) < len(self.files):
            raise ValueError(f"a fragment names a file outside 0 .. {len(self.files) - 1}")

    @classmethod
    def build(
        cls, files: Sequence[str], groups: ArrayLike | Sequence[tuple[int, int, int]], fingerprint: str
    ) -> Manifest:
        """Cut row groups into fragments of at most MAX_FRAGMENT_ROWS rows; groups without rows leave no
        fragment.

        groups: (G, 3) of (index into files, row group, number of rows), in source order. An integer array is
        taken as it is; a list of a million tuples costs about half a second more.
        """
        table = np.asarray(groups, dtype=np.int64).reshape(-1, 3)
        sizes = table[:, 2]
        if len(sizes) and int(sizes.min()) < 0:
            raise ValueError(f"a row group has {int(sizes.min())} rows")
        pieces = -(-sizes // MAX_FRAGMENT_ROWS)
        of = np.repeat(np.arange(len(table)), pieces)
        first = np.cumsum(pieces) - pieces
        offset = (np.arange(len(of)) - first[of]) * MAX_FRAGMENT_ROWS
        return cls(
            files=tuple(files),
            file=table[of, 0].astype(np.int32),
            group=table[of, 1].astype(np.int32),
            offset=offset,
            rows=np.minimum(sizes[of] - offset, MAX_FRAGMENT_ROWS),
            fingerprint=fingerprint,
        )

    @cached_property
    def start(self) -> NDArray[np.int64]:
        """(F + 1,) global number of each fragment's first row; the last entry is `num_rows`."""
        start = np.zeros(len(self.rows) + 1, dtype=np.int64)
        np.cumsum(self.rows, out=start[1:])
        return start

    def __repr__(self) -> str:
        return f"Manifest({len(self.files)} files, {self.num_fragments} fragments, {self.num_rows} rows)"

    @property
    def num_rows(self) -> int:
        return int(self.start[-1])

    @property
    def num_fragments(self) -> int:
        return len(self.rows)
