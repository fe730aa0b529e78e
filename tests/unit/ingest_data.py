"""Data sets for the ingest tests: a row's `id` is its global number, and `x` follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from god_ray.ingest.feed import Feed
from god_ray.ingest.held import Leaf
from god_ray.ingest.parquet import ParquetSource
from god_ray.plan import Cursor, DataPlan

WIDTH = 3


def rows_table(lo: int, hi: int) -> pa.Table:
    ids = np.arange(lo, hi, dtype=np.int64)
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, WIDTH).astype(np.float32)), WIDTH)
    return pa.table({"id": ids, "x": x, "even": ids % 2 == 0, "half": (ids % 1000).astype(np.float16)})


def write(folder: Path, files: Sequence[tuple[int, int]]) -> ParquetSource:
    """files: (rows, rows per row group) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    lo = 0
    for index, (rows, group) in enumerate(files):
        pq.write_table(
            rows_table(lo, lo + rows), folder / f"{index:03}.parquet", row_group_size=max(group, 1)
        )
        lo += rows
    return ParquetSource.open([str(folder)])


def weighing(source: ParquetSource, row_bytes: int) -> ParquetSource:
    """The same set, its rows said to be so large: small ones are read by the worker at one go."""
    return ParquetSource(source.schema, source.manifest, row_bytes, source.sizes, source.reader)


def plan_of(source: ParquetSource, shuffle: str, batch_size: int, lanes: int, window: int = 3) -> DataPlan:
    return DataPlan(source.manifest, batch_size, lanes, 11, shuffle, window, 2)  # type: ignore[arg-type]


def check_leaf(leaf: Leaf | None, plan: DataPlan, cursor: Cursor, lane: int) -> int:
    """The leaf is the plan's, in rows, order and values. Returns its number of rows."""
    planned = plan.epoch(cursor.epoch).row_numbers(lane, cursor.step_in_epoch)
    if leaf is None:
        assert len(planned) == 0
        return 0
    assert leaf.rows.tolist() == planned.tolist()
    assert leaf.batch["id"].tolist() == planned.tolist()
    assert leaf.batch["x"].shape == (len(planned), WIDTH)
    assert (leaf.batch["x"].numpy() == planned[:, None]).all()
    assert leaf.batch["even"].tolist() == (planned % 2 == 0).tolist()
    return len(planned)


def check_steps(feed: Feed, plan: DataPlan, first: int, last: int, lanes: range) -> int:
    """Steps [first, last) of these lanes. Returns the number of rows."""
    feed.start(plan.cursor_at(first), lanes)
    total = 0
    for step in range(first, last):
        cursor = plan.cursor_at(step)
        for lane in lanes:
            total += check_leaf(feed.leaf(cursor, lane), plan, cursor, lane)
    return total
