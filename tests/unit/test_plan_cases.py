"""Trouble cases that other trainers got wrong, with the right values: resume, resizing, tiny data."""

import numpy as np
import pytest

from god_ray.plan import Cursor, DataPlan, Manifest, Shuffle, worker_lanes

SHUFFLES: tuple[Shuffle, ...] = ("full", "window", "none")


def plan_of(
    sizes: list[int],
    batch_size: int,
    lanes: int,
    shuffle: Shuffle = "full",
    seed: int = 0,
    window: int = 2,
    min_leaf_rows: int = 2,
) -> DataPlan:
    """A plan over one file with row groups of these sizes."""
    manifest = Manifest.build(["a"], [(0, group, rows) for group, rows in enumerate(sizes)], "")
    return DataPlan(manifest, batch_size, lanes, seed, shuffle, window, min_leaf_rows)


def step_rows(plan: DataPlan, step: int, lanes: range | None = None) -> list[int]:
    """All rows of a global step in lane order, or of those lanes."""
    at = plan.cursor_at(step)
    epoch = plan.epoch(at.epoch)
    return [
        int(row) for lane in lanes or range(plan.lanes) for row in epoch.row_numbers(lane, at.step_in_epoch)
    ]


def epoch_rows(plan: DataPlan, epoch: int) -> list[int]:
    first = epoch * plan.steps_per_epoch
    return [row for step in range(first, first + plan.steps_per_epoch) for row in step_rows(plan, step)]


def test_mid_epoch_resume_continues_that_epoch() -> None:
    """Case 1.01: 125 steps per epoch, resumed at step 200, 75 steps into epoch 1."""
    plan = plan_of([500, 500], 8, 4, seed=1)
    assert plan.cursor_at(200) == Cursor(epoch=1, step_in_epoch=75, step=200)
    whole = [step_rows(plan, step) for step in range(201, 261)]
    resumed = plan_of([500, 500], 8, 4, seed=1)
    assert [step_rows(resumed, step) for step in range(201, 261)] == whole
    assert [step_rows(resumed, step - 125) for step in range(201, 250)] != whole[:49]


def test_a_checkpoint_on_the_epoch_boundary_is_not_an_empty_epoch() -> None:
    """Case 1.03: 64 samples, batch 8, 3 epochs, stop after step 8: 16 updates are left, 24 in all."""
    plan = plan_of([64], 8, 4)
    assert plan.cursor_at(8) == Cursor(1, 0, 8)
    assert [plan.cursor_at(step).epoch for step in range(24)] == [0] * 8 + [1] * 8 + [2] * 8
    assert sorted(row for step in range(8, 16) for row in step_rows(plan, step)) == list(range(64))


def test_a_stream_goes_on_where_it_was() -> None:
    """Case 1.04: 10 files of 1000 rows, killed after 40 % of the epoch: every id exactly once."""
    manifest = Manifest.build(
        [f"{name}.parquet" for name in range(10)], [(name, 0, 1000) for name in range(10)], ""
    )
    before, after = (DataPlan(manifest, 100, 4, 0, "window", 2, 2) for _ in range(2))
    rows = [row for step in range(40) for row in step_rows(before, step)]
    rows += [row for step in range(40, 100) for row in step_rows(after, step)]
    assert sorted(rows) == list(range(10_000))


def test_growing_from_one_to_two_workers() -> None:
    """Case 1.05: ids 0-15, batch 4, unshuffled; each lane has a contiguous half, a step takes from both."""
    plan = plan_of([16], 4, 2, "none")
    assert step_rows(plan, 0, range(2)) == [0, 1, 8, 9]  # one worker
    assert step_rows(plan, 1, range(1)) == [2, 3]  # two workers, from the next step on
    assert step_rows(plan, 1, range(1, 2)) == [10, 11]
    assert [step_rows(plan_of([16], 4, 1, "none"), step) for step in range(4)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
    ]


def test_skipping_is_not_applied_again() -> None:
    """Case 1.09: 100 batches per epoch, resumed at 30, 3 epochs: 70 + 100 + 100 steps, up to 300."""
    plan = plan_of([400], 4, 2)
    epochs = [plan.cursor_at(step).epoch for step in range(30, 300)]
    assert [epochs.count(epoch) for epoch in range(3)] == [70, 100, 100]
    assert plan.cursor_at(300) == Cursor(3, 0, 300)


@pytest.mark.parametrize("sizes", [[30, 10], [10, 30], [40], [1] * 40])
def test_the_number_of_batches_depends_on_rows_only(sizes: list[int]) -> None:
    """Case 2.01: 40 rows in blocks of 30 and 10, batch 8: 5 batches of 8, however the rows are blocked."""
    for shuffle in SHUFFLES:
        plan = plan_of(sizes, 8, 2, shuffle)
        assert [len(step_rows(plan, step)) for step in range(plan.steps_per_epoch)] == [8] * 5
        assert [plan.leaf_rows(step) for step in range(5)] == [(4, 4)] * 5


def test_few_rows_train_or_are_refused_with_numbers() -> None:
    """Case 2.02: 25 rows; 1 row; none."""
    assert [plan_of([25], 8, lanes).leaf_rows(0) for lanes in (2, 4)] == [(4, 4), (2, 2, 2, 2)]
    assert sorted(epoch_rows(plan_of([25], 25, 32, "window"), 0)) == list(range(25))
    for rows in (24, 1, 0):
        with pytest.raises(ValueError, match=f"{rows} rows are fewer than one batch of 25"):
            plan_of([rows], 25, 2)


@pytest.mark.parametrize("files", [1, 3])
def test_no_lane_is_without_data_when_files_are_few(files: int) -> None:
    """Case 2.07: 1 file of 40 row groups, or 3 files: lanes are cut by rows, not by files."""
    groups = [(name, group, 25) for name in range(files) for group in range(40)]
    plan = DataPlan(
        Manifest.build([str(name) for name in range(files)], groups, ""), 100, 8, 0, "window", 8, 2
    )
    assert np.diff(plan.stream_start).tolist() == [120 * files, 130 * files] * 4


def test_the_global_batch_is_constant_at_any_size() -> None:
    """Case 2.08: global batch 100, sizes 4 -> 3 -> 7: always 100 rows; a worker's part is its lanes'."""
    plan = plan_of([1000], 100, 7)
    assert plan.leaf_rows(0) == (14, 14, 14, 15, 14, 14, 15)
    parts = {
        workers: [sum(plan.leaf_rows(0)[lo:hi]) for lo, hi in worker_lanes(7, workers)]
        for workers in (4, 3, 7)
    }
    assert parts == {4: [28, 29, 28, 15], 3: [28, 29, 43], 7: [14, 14, 14, 15, 14, 14, 15]}
    assert plan_of([1000], 100, 3).leaf_rows(0) == (33, 33, 34)
