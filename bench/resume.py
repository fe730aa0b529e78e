"""Resuming in mid-epoch of a large set: from opening it to the first batch, at several positions.

Run: python bench/resume.py [--quick] [--rounds N]. In: nothing. Out: one table. god_ray's feed (windows, read
by the worker itself) goes to the position by arithmetic; the other side reads and skips, as a DataLoader that
is wound forward does. Both read the same files, in turns, which the page cache holds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import measure
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from god_ray.ingest.feed import open_feed
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.tensors import array_columns
from god_ray.plan import DataPlan

LANES, WINDOW, ROWS_PER_GROUP, NUM_FILES = 4, 8, 10_000, 8
POSITIONS = (0.0, 0.1, 0.5, 0.9)


def batches(folder: Path) -> Iterator[dict[str, Tensor]]:
    """The rows in the order of the files, as a plain loader makes batches of them."""
    for path in sorted(folder.iterdir()):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=measure.BATCH_SIZE):
            columns = array_columns(pa.Table.from_batches([batch]))
            yield {name: torch.from_numpy(values.copy()) for name, values in columns.items()}


def read_and_skip(folder: Path, position: float, num_batches: int) -> float:
    """Seconds to the first batch after the skipped ones."""
    begin, skip = time.perf_counter(), int(position * num_batches)
    for number, _ in enumerate(batches(folder)):
        if number == skip:
            break
    return time.perf_counter() - begin


def by_arithmetic(folder: Path, position: float) -> float:
    """Seconds to every lane's share of the step at that position."""
    begin = time.perf_counter()
    source = ParquetSource.open([str(folder)])
    plan = DataPlan(source.manifest, measure.BATCH_SIZE, LANES, 1, "window", WINDOW, 2)
    feed = open_feed(source, plan, reader="direct")
    cursor = plan.cursor_at(int(position * plan.steps_per_epoch))
    feed.start(cursor, range(LANES))
    for lane in range(LANES):
        feed.leaf(cursor, lane)
    taken = time.perf_counter() - begin
    feed.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    num_rows = 400_000 if options.quick else 4_000_000
    with tempfile.TemporaryDirectory(prefix="god_ray-bench-") as name:
        folder = Path(name)
        for index in range(NUM_FILES):
            measure.write_data(folder / f"{index}.parquet", num_rows // NUM_FILES, ROWS_PER_GROUP)
        size = sum(path.stat().st_size for path in folder.iterdir())
        times: dict[tuple[str, float], list[float]] = {}
        for _ in range(options.rounds):
            for at in POSITIONS:
                skipped = read_and_skip(folder, at, num_rows // measure.BATCH_SIZE)
                times.setdefault(("skip", at), []).append(skipped)
                times.setdefault(("god_ray", at), []).append(by_arithmetic(folder, at))
    measure.heading(f"From opening to the first batch: {num_rows:,} rows, {size / 1e9:.2f} GB")
    rows = []
    for at in POSITIONS:
        ours, theirs = times["god_ray", at], times["skip", at]
        ratio = measure.spread([a / b for a, b in zip(theirs, ours)], 1)
        rows.append([f"{at:.0%}", measure.spread(ours), measure.spread(theirs), ratio])
    measure.table(["position", "god_ray (s)", "read and skip (s)", "read and skip / god_ray"], rows)


if __name__ == "__main__":
    main()
