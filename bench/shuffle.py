"""What shuffling costs: rows/s of one epoch through the feed, in windows and in full, against none.

Run: python bench/shuffle.py [--quick] [--rounds N]. In: nothing. Out: one table, for rows of 12,000 floats
and of 64. One process reads for itself, every batch is summed as a trivial step would, opening and loading
count. Orders take turns on the same files, which the page cache holds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import measure
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from god_ray.ingest.feed import open_feed
from god_ray.ingest.parquet import ParquetSource
from god_ray.plan import DataPlan

LANES, WINDOW = 4, 8
ORDERS = ("none", "window", "full")
SHAPES = {"wide": (12_000, 8_000, 250, 64), "normal": (64, 1_000_000, 10_000, 256)}
"""Floats in a row, rows, rows in a row group, batch size."""


def write(path: Path, width: int, num_rows: int, group_rows: int) -> Path:
    """`x`: floats as fixed_size_list."""
    random = np.random.default_rng(0)
    schema = pa.schema([("x", pa.list_(pa.float32(), width))])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(0, num_rows, group_rows):
            numbers = pa.array(random.standard_normal(group_rows * width, dtype=np.float32))
            column = pa.FixedSizeListArray.from_arrays(numbers, width)
            writer.write_table(pa.Table.from_arrays([column], schema=schema), row_group_size=group_rows)
    return path


def epoch_s(path: Path, batch_size: int, shuffle: str) -> float:
    """From opening the set to the last batch of the epoch."""
    begin = time.perf_counter()
    source = ParquetSource.open([str(path)])
    plan = DataPlan(source.manifest, batch_size, LANES, 1, shuffle, WINDOW, 2)  # type: ignore[arg-type]
    feed = open_feed(source, plan, reader="direct", num_steps=plan.steps_per_epoch)
    feed.start(plan.cursor_at(0), range(LANES))
    for step in range(plan.steps_per_epoch):
        for lane in range(LANES):
            leaf = feed.leaf(plan.cursor_at(step), lane)
            if leaf is not None:
                leaf.batch["x"].sum()
    feed.close()
    return time.perf_counter() - begin


def rows_of(name: str, num_rows: int, taken: dict[str, list[float]]) -> Iterator[list[str]]:
    """A line of the table for each order."""
    for shuffle in ORDERS:
        ratios = [none / own for own, none in zip(taken[shuffle], taken["none"])]
        speed = measure.spread([num_rows / seconds for seconds in taken[shuffle]], 0)
        yield [name, shuffle, speed, measure.spread(ratios)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    lines: list[list[str]] = []
    for name, (width, num_rows, group_rows, batch_size) in SHAPES.items():
        num_rows //= 4 if options.quick else 1
        with tempfile.TemporaryDirectory(prefix="god_ray-bench-") as folder:
            path = write(Path(folder, "data.parquet"), width, num_rows, group_rows)
            epoch_s(path, batch_size, "none")  # into the page cache
            taken: dict[str, list[float]] = {shuffle: [] for shuffle in ORDERS}
            for _ in range(options.rounds):
                for shuffle in ORDERS:
                    taken[shuffle].append(epoch_s(path, batch_size, shuffle))
            size = f"{name}: {width:,} floats, {num_rows:,} rows, {path.stat().st_size / 1e6:.0f} MB"
        lines += rows_of(size, num_rows, taken)
    measure.heading(f"One epoch through the feed, {LANES} lanes, windows of {WINDOW} fragments")
    measure.table(["rows", "data.shuffle", "rows/s", "/ none"], lines)


if __name__ == "__main__":
    main()
