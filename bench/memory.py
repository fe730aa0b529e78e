"""Does a worker's memory grow with the data? The same number of steps over 1x and 4x rows, windows on.

Run: python bench/memory.py [--quick]. In: nothing. Out: the memory that is the workers' own (USS:
neither shared libraries nor Ray's object store), sampled while they train. `data.memory_bytes` is far
below both sets.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import commands
import measure
import psutil
import recipe

BATCH_SIZE, WORKERS, ROWS_PER_GROUP = 1024, 2, 4096
MEMORY_BYTES = 16 << 20


def own_bytes(command: commands.Command) -> Iterator[list[int]]:
    """USS of each worker, some times a second, from the first step to the end."""
    command.first_step_s()
    workers = json.loads((command.folder / "run" / "run.json").read_text())["workers"]
    processes = [psutil.Process(worker["pid"]) for worker in workers]
    while command.process.poll() is None:
        try:
            yield [process.memory_full_info().uss for process in processes]
        except psutil.NoSuchProcess:
            return
        time.sleep(0.2)


def measured(folder: Path, data: Path, reader: str, steps: int) -> tuple[float, float]:
    """(largest, median) of the larger worker, in MB."""
    spec = measure.spec(data, recipe.SMALL, 4, WORKERS, steps=steps)
    spec |= {
        "batch_size": BATCH_SIZE,
        "data": {"train": str(data), "reader": reader, "memory_bytes": MEMORY_BYTES, "window": 2},
    }
    command = commands.god_ray(folder, spec)
    samples = [max(each) / 1e6 for each in own_bytes(command)]
    command.finish()
    return max(samples), median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one reader, fewer rows")
    quick = parser.parse_args().quick
    base = 100_000 if quick else 400_000
    rows = []
    with tempfile.TemporaryDirectory(prefix="god_ray-bench-") as name:
        folder = Path(name)
        steps = 4 * base // BATCH_SIZE + 1
        sets = [measure.write_data(folder / f"{n}x.parquet", n * base, ROWS_PER_GROUP) for n in (1, 4)]
        for reader in ["ray"] if quick else ["ray", "direct"]:
            found = [measured(folder / f"{reader}-{d.stem}", d, reader, steps) for d in sets]
            for data, (most, usual) in zip(sets, found):
                size = f"{data.stem}: {data.stat().st_size / 1e6:.0f} MB"
                ratios = [f"{most / found[0][0]:.2f}", f"{usual / found[0][1]:.2f}"]
                rows.append([reader, size, f"{most:.0f}", f"{usual:.0f}", *ratios])
    measure.heading(f"Memory of a worker over {steps} steps, data.memory_bytes {MEMORY_BYTES / 1e6:.0f} MB")
    columns = ["data.reader", "data", "largest USS (MB)", "median USS (MB)", "largest / 1x", "median / 1x"]
    measure.table(columns, rows)


if __name__ == "__main__":
    main()
