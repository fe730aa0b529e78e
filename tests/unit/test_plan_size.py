"""A million fragments with 10^10 rows: the plan stays arrays, and only what is asked for becomes objects."""

import tracemalloc

import numpy as np

from god_ray.plan import Cursor, DataPlan, Manifest

FRAGMENTS, ROWS_EACH = 1_000_000, 10_000


def million() -> DataPlan:
    number = np.arange(FRAGMENTS, dtype=np.int64)
    groups = np.stack([number // 1000, number % 1000, np.full_like(number, ROWS_EACH)], axis=1)
    manifest = Manifest.build([f"part-{file:04}.parquet" for file in range(1000)], groups, "")
    return DataPlan(manifest, 4096, 7, 1, "window", 8, 2)


def test_a_million_fragments_plan_in_200_mb() -> None:
    tracemalloc.start()
    try:
        plan = million()
        at = plan.cursor_at(12 * plan.steps_per_epoch + plan.steps_per_epoch // 2)
        epoch = plan.epoch(at.epoch)
        lo, _ = plan.lane_range(3, at.step_in_epoch)
        windows = epoch.windows(3, lo)
        first = next(iter(windows))
        rows = epoch.row_numbers(3, at.step_in_epoch)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan.manifest.num_rows == 10**10
    assert plan.steps_per_epoch == 10**10 // 4096 + 1  # the tail of 1024 rows is packed
    assert at == Cursor(12, plan.steps_per_epoch // 2, 12 * plan.steps_per_epoch + plan.steps_per_epoch // 2)
    assert first.start <= lo < first.start + first.rows
    assert len(rows) == plan.leaf_rows(at.step_in_epoch)[3]
    assert peak_bytes <= 200e6


def test_the_epochs_behind_do_not_pile_up() -> None:
    plan = million()
    plan.epoch(0).windows(0)
    tracemalloc.start()
    try:
        for number in range(1, 6):
            len(plan.epoch(number).windows(0))
        now_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now_bytes <= 40e6  # two epochs of two arrays of 8 MB
