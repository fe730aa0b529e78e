"""How long it takes to plan a million fragments with 10^10 rows, and how much memory; prints one table.

Run: python bench/plan.py [FRAGMENTS]. Times are the best of 3 runs; memory is from a traced run of its own.
Goal: manifest + plan + epoch + a lane's windows from a position in <= 1 s and <= 200 MB.
"""

from __future__ import annotations

import sys
import time
import tracemalloc

import numpy as np
from numpy.typing import NDArray

from god_ray.plan import DataPlan, Manifest

ROWS_EACH = 10_000


def row_groups(count: int) -> NDArray[np.int64]:
    number = np.arange(count, dtype=np.int64)
    return np.stack([number // 1000, number % 1000, np.full_like(number, ROWS_EACH)], axis=1)


def plan_once(groups: NDArray[np.int64]) -> dict[str, float]:
    """Seconds of each part, resuming lane 2 of 4 in the middle of epoch 5."""
    at = [time.perf_counter()]
    files = [f"part-{name:05}.parquet" for name in range(len(groups) // 1000 + 1)]
    manifest = Manifest.build(files, groups, "")
    at.append(time.perf_counter())
    plan = DataPlan(manifest, 4096, 4, 1, "window", 8, 2)
    epoch = plan.epoch(5)
    step = plan.steps_per_epoch // 2
    windows = epoch.windows(2, plan.lane_range(2, step)[0])
    next(iter(windows))
    at.append(time.perf_counter())
    epoch.row_numbers(2, step)
    at.append(time.perf_counter())
    for _ in windows:
        pass
    at.append(time.perf_counter())
    names = ("manifest", "plan, epoch, first window", "row numbers of a leaf", "the lane's other windows")
    return dict(zip(names, np.diff(at).tolist(), strict=True))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    groups = row_groups(count)
    runs = [plan_once(groups) for _ in range(3)]
    best = {name: min(run[name] for run in runs) for name in runs[0]}
    tracemalloc.start()
    plan_once(groups)
    peak_bytes = tracemalloc.get_traced_memory()[1] + groups.nbytes
    total_s = sum(best.values())
    columns = ["fragments", "rows", *(f"{name} (s)" for name in best), "total (s)", "peak (MB)"]
    values = [f"{count:,}", f"{count * ROWS_EACH:,}", *(f"{s:.3f}" for s in best.values())]
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    print("| " + " | ".join([*values, f"{total_s:.3f}", f"{peak_bytes / 1e6:.0f}"]) + " |")


if __name__ == "__main__":
    main()
