"""The order of rows: each once per epoch, exact batches, a pure function of its inputs."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from god_ray.plan import (
    DataPlan,
    Manifest,
    Shuffle,
    checksum,
    epoch_checksum,
    row_hash,
    worker_lanes,
)

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


@st.composite
def plans(draw: st.DrawFn) -> DataPlan:
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any))
    return plan_of(
        sizes,
        batch_size=draw(st.integers(1, min(sum(sizes), 48))),
        lanes=draw(st.integers(1, 9)),
        shuffle=draw(st.sampled_from(SHUFFLES)),
        seed=draw(st.integers(0, 2**63)),
        window=draw(st.integers(1, 5)),
        min_leaf_rows=draw(st.integers(1, 4)),
    )


# -- law 1: every row once, exact batches ------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(plans(), st.integers(0, 3))
def test_each_row_is_used_exactly_once_per_epoch(plan: DataPlan, epoch: int) -> None:
    assert sorted(epoch_rows(plan, epoch)) == list(range(plan.manifest.num_rows))


@settings(max_examples=200, deadline=None)
@given(plans())
def test_every_step_but_the_last_has_exactly_the_batch(plan: DataPlan) -> None:
    counts = [sum(plan.leaf_rows(step)) for step in range(plan.steps_per_epoch)]
    assert counts[:-1] == [plan.batch_size] * (plan.steps_per_epoch - 1)
    assert 0 < counts[-1] < 2 * plan.batch_size
    assert sum(counts) == plan.manifest.num_rows
    full_steps, rest = divmod(plan.manifest.num_rows, plan.batch_size)
    assert plan.steps_per_epoch in ({full_steps, full_steps + 1} if rest else {full_steps})


@settings(max_examples=200, deadline=None)
@given(plans())
def test_no_leaf_is_too_small_unless_the_lanes_are(plan: DataPlan) -> None:
    small = [
        rows
        for step in range(plan.steps_per_epoch)
        for rows in plan.leaf_rows(step)
        if 0 < rows < plan.min_leaf_rows
    ]
    assert not small or plan.batch_size // plan.lanes < plan.min_leaf_rows


@settings(max_examples=200, deadline=None)
@given(plans())
def test_ranges_follow_on_and_have_the_leaf_s_rows(plan: DataPlan) -> None:
    epoch = plan.epoch(0)
    for lane in range(plan.lanes):
        position = 0
        for step in range(plan.steps_per_epoch):
            lo, hi = plan.lane_range(lane, step)
            assert (lo, hi - lo) == (position, plan.leaf_rows(step)[lane])
            assert len(epoch.row_numbers(lane, step)) == hi - lo
            position = hi
        assert position == plan.stream_start[lane + 1] - plan.stream_start[lane]
    assert plan.stream_start[-1] == plan.manifest.num_rows


@settings(max_examples=100, deadline=None)
@given(plans())
def test_measured_checksums_of_an_epoch_need_no_plan(plan: DataPlan) -> None:
    epoch = plan.epoch(1)
    total = sum(
        checksum(row_hash(epoch.row_numbers(lane, step)))
        for step in range(plan.steps_per_epoch)
        for lane in range(plan.lanes)
    )
    assert total % 2**64 == epoch_checksum(plan.manifest.num_rows)


@pytest.mark.parametrize(
    ("num_rows", "batch_size", "lanes", "steps", "full", "last"),
    [
        (1797, 64, 4, 29, (16, 16, 16, 16), (5, 0, 0, 0)),  # a packed tail: three absent leaves
        (1797, 64, 7, 29, (9, 9, 9, 9, 9, 9, 10), (5, 0, 0, 0, 0, 0, 0)),
        (1797, 32, 3, 57, (10, 11, 11), (5, 0, 0)),
        (128, 64, 4, 2, (16, 16, 16, 16), (16, 16, 16, 16)),  # no tail
        (129, 64, 4, 2, (16, 16, 16, 16), (16, 16, 16, 17)),  # one row would be a leaf alone: it joins
        (145, 64, 4, 2, (16, 16, 16, 16), (20, 20, 20, 21)),  # 17 = 16 + 1: all 17 join, evenly
        (146, 64, 4, 3, (16, 16, 16, 16), (16, 2, 0, 0)),  # 18 = 16 + 2: packed
        (65, 64, 4, 1, (16, 16, 16, 16), (16, 16, 16, 17)),  # the only step is the joined one
        (64, 64, 4, 1, (16, 16, 16, 16), (16, 16, 16, 16)),
        (7, 2, 4, 3, (0, 1, 0, 1), (0, 1, 0, 2)),  # fewer rows than lanes: absent leaves in every step
    ],
)
def test_the_tail_rule(
    num_rows: int, batch_size: int, lanes: int, steps: int, full: tuple[int, ...], last: tuple[int, ...]
) -> None:
    plan = plan_of([num_rows], batch_size, lanes)
    assert plan.steps_per_epoch == steps
    assert plan.leaf_rows(steps - 1) == last
    assert all(plan.leaf_rows(step) == full for step in range(steps - 1))


def test_min_leaf_rows_of_one_never_joins() -> None:
    plan = plan_of([129], 64, 4, min_leaf_rows=1)
    assert (plan.steps_per_epoch, plan.leaf_rows(2)) == (3, (1, 0, 0, 0))


# -- the order: reference, randomness, purity --------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(plans(), st.integers(0, 3))
def test_unshuffled_streams_are_contiguous_slices_of_the_data(plan: DataPlan, epoch: int) -> None:
    plain = plan_of(plan.manifest.rows.tolist(), plan.batch_size, plan.lanes, "none")
    streams = [
        [
            int(row)
            for step in range(plain.steps_per_epoch)
            for row in plain.epoch(epoch).row_numbers(lane, step)
        ]
        for lane in range(plain.lanes)
    ]
    assert list(chain.from_iterable(streams)) == list(range(plain.manifest.num_rows))


@settings(max_examples=50, deadline=None)
@given(plans())
def test_full_is_one_permutation_cut_into_streams(plan: DataPlan) -> None:
    full = plan_of(plan.manifest.rows.tolist(), plan.batch_size, plan.lanes, "full", plan.seed)
    epoch = full.epoch(2)
    streams = [
        epoch.row_numbers(lane, step) for lane in range(full.lanes) for step in range(full.steps_per_epoch)
    ]
    assert np.array_equal(np.concatenate(streams), epoch.permutation)


@pytest.mark.parametrize("shuffle", ["full", "window"])
def test_epochs_and_seeds_differ(shuffle: Shuffle) -> None:
    """Case 1.01: a later epoch has an order of its own, not the first one's."""
    orders = {
        tuple(epoch_rows(plan_of([100] * 10, 50, 4, shuffle, seed), epoch))
        for seed in range(3)
        for epoch in range(4)
    }
    assert len(orders) == 12


def test_window_shuffle_moves_rows_inside_windows_and_windows_among_themselves() -> None:
    rows = np.array(epoch_rows(plan_of([10] * 8, 40, 1, "window", window=2), 0)).reshape(4, 20)
    tens = [sorted({int(row) // 10 for row in window}) for window in rows]
    assert all(len(pair) == 2 for pair in tens)  # a window is two whole fragments
    assert tens != sorted(tens)
    assert all(window.tolist() != sorted(window.tolist()) for window in rows)


def test_unshuffled_epochs_are_all_alike() -> None:
    plan = plan_of([7, 30, 3], 8, 3, "none")
    assert epoch_rows(plan, 0) == epoch_rows(plan, 5)


GOLDEN = {
    "full": [10, 3, 9, 36, 14, 27, 28, 21],
    "window": [20, 13, 0, 3, 24, 18, 8, 32],
    "none": [0, 1, 20, 21, 2, 3, 22, 23],
}


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_the_order_is_on_file(shuffle: Shuffle) -> None:
    """The same on every machine and with every numpy: a change here breaks each run that is resumed."""
    plan = plan_of([12, 9, 19], 4, 2, shuffle, seed=7)
    assert step_rows(plan, 10) + step_rows(plan, 11) == GOLDEN[shuffle]


def test_the_order_is_the_same_in_a_fresh_process_and_after_pickling() -> None:
    plan = plan_of([40, 9, 33], 8, 3, "window", seed=2**40)
    expected = epoch_rows(plan, 3)
    assert epoch_rows(pickle.loads(pickle.dumps(plan)), 3) == expected
    script = (
        "import pickle, sys; plan = pickle.load(sys.stdin.buffer); epoch = plan.epoch(3);"
        "leaves = [epoch.row_numbers(v, s) for s in range(plan.steps_per_epoch) for v in range(3)];"
        "print([int(row) for leaf in leaves for row in leaf])"
    )
    other = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(plan), stdout=subprocess.PIPE, check=True
    )
    assert other.stdout.decode().strip() == str(expected)


@settings(max_examples=50, deadline=None)
@given(plans(), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_what_was_asked_before(plan: DataPlan, random: object) -> None:
    steps = list(range(2 * plan.steps_per_epoch))
    in_order = {step: step_rows(plan, step) for step in steps}
    random.shuffle(steps)  # type: ignore[attr-defined]
    fresh = pickle.loads(pickle.dumps(plan))
    assert {step: step_rows(fresh, step) for step in steps} == in_order


def test_what_is_handed_out_can_be_changed_without_harm() -> None:
    for shuffle in SHUFFLES:
        plan = plan_of([10, 10], 5, 2, shuffle)
        before = step_rows(plan, 1)
        plan.epoch(0).row_numbers(0, 1)[:] = -1
        assert step_rows(plan, 1) == before


# -- the cursor and the number of workers ------------------------------------------------------------------


@settings(deadline=None)
@given(plans(), st.integers(0, 10**12))
def test_a_cursor_is_arithmetic(plan: DataPlan, step: int) -> None:
    at = plan.cursor_at(step)
    assert at.step == step
    assert at.epoch * plan.steps_per_epoch + at.step_in_epoch == step
    assert 0 <= at.step_in_epoch < plan.steps_per_epoch
    assert at < plan.cursor_at(step + 1)


def run(plan: DataPlan, sizes: Iterator[int], kills: set[int]) -> list[list[int]]:
    """The rows of each step of one epoch when the number of workers changes before each step in `kills`."""
    workers, steps = next(sizes), []
    for step in range(plan.steps_per_epoch):
        if step in kills:
            workers = next(sizes)
        ranges = worker_lanes(plan.lanes, workers)
        steps.append([row for lo, hi in ranges for row in step_rows(plan, step, range(lo, hi))])
    return steps


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_several_resizes_inside_one_epoch(shuffle: Shuffle) -> None:
    """Case 1.07: 1000 ids, 4 -> 5 -> 7 -> 8 -> 3 workers, none at a boundary: each id once."""
    plan = plan_of([130] * 7 + [90], 32, 8, shuffle)
    steps = run(plan, iter([4, 5, 7, 8, 3]), {5, 11, 17, 23})
    assert sorted(chain.from_iterable(steps)) == list(range(1000))
    assert steps == run(plan, iter([1]), set())
    assert [len(rows) for rows in steps] == [32] * 31 + [8]


@settings(max_examples=50, deadline=None)
@given(plans(), st.data())
def test_the_number_of_workers_never_changes_a_step(plan: DataPlan, data: st.DataObject) -> None:
    kills = data.draw(st.sets(st.integers(1, plan.steps_per_epoch), max_size=4))
    sizes = data.draw(st.lists(st.integers(1, plan.lanes), min_size=5, max_size=5))
    assert run(plan, iter(sizes), kills) == run(plan, iter([1]), set())


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_size", 0), ("lanes", 0), ("window", 0), ("min_leaf_rows", 0), ("seed", -1), ("shuffle", "auto")],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    fields: dict[str, object] = {"batch_size": 4, "lanes": 2, "seed": 0, "shuffle": "full", "window": 2}
    manifest = Manifest.build(["a"], [(0, 0, 9)], "")
    with pytest.raises(ValueError, match=f"{field} = {value!r}"):
        DataPlan(manifest, **{"min_leaf_rows": 2, **fields, field: value})  # type: ignore[arg-type]


def test_steps_lanes_and_epochs_outside_are_refused() -> None:
    plan = plan_of([10], 5, 2)
    for call in (
        lambda: plan.leaf_rows(2),
        lambda: plan.leaf_rows(-1),
        lambda: plan.lane_range(2, 0),
        lambda: plan.lane_range(-1, 0),
        lambda: plan.epoch(0).row_numbers(0, 2),
        lambda: plan.epoch(-1),
        lambda: plan.cursor_at(-1),
    ):
        with pytest.raises(IndexError):
            call()


def test_the_last_two_epochs_are_kept() -> None:
    plan = plan_of([10], 5, 2)
    one, two = plan.epoch(1), plan.epoch(2)
    assert plan.epoch(1) is one
    assert plan.epoch(2) is two
    plan.epoch(3)
    assert plan.epoch(2) is two
    assert plan.epoch(1) is not one
