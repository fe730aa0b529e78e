"""Data sets of the law tests: a row's `id` is its global number, all else follows from a fixed seed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WIDTH, CLASSES = 12, 5


def rows(num_rows: int, seed: int = 0) -> pa.Table:
    """A task that can be learned: five centres, and noise."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(CLASSES, WIDTH))
    y = random.integers(0, CLASSES, num_rows)
    x = (centres[y] + random.normal(size=(num_rows, WIDTH))).astype(np.float32)
    return pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), WIDTH),
            "y": pa.array(y, pa.int64()),
            "mask": pa.array((random.random(num_rows) < 0.6).astype(np.float32)),
            "id": pa.array(np.arange(num_rows, dtype=np.int64)),
        }
    )


def write(folder: Path, num_rows: int, files: int = 1, group: int = 16, seed: int = 0) -> str:
    """`files` Parquet files with row groups of at most `group` rows; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = rows(num_rows, seed)
    edges = [num_rows * i // files for i in range(files + 1)]
    for i, (lo, hi) in enumerate(pairwise(edges)):
        pq.write_table(table.slice(lo, hi - lo), folder / f"{i:03}.parquet", row_group_size=group)
    return str(folder)
