"""Windows: they tile each lane's stream, resuming drops only what is done, rows are the plan's."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from god_ray.plan import DataPlan, EpochPlan, Manifest, Segment, Window, window_permutation

Row = tuple[int, int]


def plan_of(
    sizes: list[int], batch_size: int, lanes: int, shuffle: str, window: int, seed: int = 0
) -> DataPlan:
    manifest = Manifest.build(["a"], [(0, group, rows) for group, rows in enumerate(sizes)], "")
    return DataPlan(manifest, batch_size, lanes, seed, shuffle, window, 2)  # type: ignore[arg-type]


@st.composite
def windowed(draw: st.DrawFn) -> DataPlan:
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=20))
    return plan_of(
        sizes,
        batch_size=draw(st.integers(1, min(sum(sizes), 40))),
        lanes=draw(st.integers(1, 6)),
        shuffle=draw(st.sampled_from(["window", "none"])),
        window=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 99)),
    )


def stream_length(plan: DataPlan, lane: int) -> int:
    return sum(plan.leaf_rows(step)[lane] for step in range(plan.steps_per_epoch))


def reading_order(window: Window) -> list[Row]:
    return [(part.fragment, row) for part in window.segments for row in range(part.lo, part.hi)]


def read(plan: DataPlan, epoch: EpochPlan, windows: list[Window]) -> list[int]:
    """What a reader delivers: each window's rows in reading order, permuted; as global numbers."""
    start = plan.manifest.start
    rows: list[int] = []
    for window in windows:
        numbers = [int(start[fragment]) + row for fragment, row in reading_order(window)]
        rows += [numbers[at] for at in epoch.window_permutation(window)]
    return rows


@settings(max_examples=200, deadline=None)
@given(windowed(), st.integers(0, 2))
def test_windows_and_permutations_give_the_row_numbers(plan: DataPlan, number: int) -> None:
    epoch = plan.epoch(number)
    for lane in range(plan.lanes):
        defined = [int(r) for step in range(plan.steps_per_epoch) for r in epoch.row_numbers(lane, step)]
        assert read(plan, epoch, list(epoch.windows(lane))) == defined


@settings(max_examples=200, deadline=None)
@given(windowed(), st.integers(0, 2))
def test_windows_tile_the_stream_of_each_lane(plan: DataPlan, number: int) -> None:
    epoch = plan.epoch(number)
    everything: list[Row] = []
    for lane in range(plan.lanes):
        position = 0
        windows = list(epoch.windows(lane))
        for index, window in enumerate(windows):
            assert (window.lane, window.index, window.start) == (lane, index, position)
            assert window.rows == len(reading_order(window)) > 0
            last = index == len(windows) - 1
            assert len(window.segments) == plan.window or (last and 0 < len(window.segments) < plan.window)
            position += window.rows
            everything += reading_order(window)
        assert position == stream_length(plan, lane)
    assert sorted(everything) == [
        (fragment, row) for fragment, rows in enumerate(plan.manifest.rows.tolist()) for row in range(rows)
    ]


@settings(max_examples=100, deadline=None)
@given(windowed())
def test_lanes_cut_one_order_of_whole_fragments(plan: DataPlan) -> None:
    """Streams follow on: a fragment is in several lanes only where their streams meet."""
    epoch = plan.epoch(1)
    fragments: list[int] = []
    for lane in range(plan.lanes):
        for window in epoch.windows(lane):
            for part in window.segments:
                if not fragments or fragments[-1] != part.fragment:
                    fragments.append(part.fragment)
    assert sorted(fragments) == list(range(plan.manifest.num_fragments))
    if plan.shuffle == "none":
        assert fragments == sorted(fragments)


@settings(max_examples=200, deadline=None)
@given(windowed(), st.data())
def test_resuming_drops_only_finished_windows(plan: DataPlan, data: st.DataObject) -> None:
    epoch = plan.epoch(0)
    lane = data.draw(st.integers(0, plan.lanes - 1))
    position = data.draw(st.integers(-1, stream_length(plan, lane) + 2))
    windows = list(epoch.windows(lane))
    left = epoch.windows(lane, position)
    assert list(left) == [window for window in windows if window.start + window.rows > position]
    assert len(left) == len(list(left))
    assert [left[at] for at in range(len(left))] == list(left)
    assert left[:2] == list(left)[:2]


def test_a_lane_s_windows_by_hand() -> None:
    """Fragments of 10, 10, 4 and 6 rows; 30 rows, batch 10, 3 lanes: streams of 9, 9 and 12 rows."""
    epoch = plan_of([10, 10, 4, 6], 10, 3, "none", window=2).epoch(0)
    assert list(epoch.windows(0)) == [Window(0, 0, 0, 9, (Segment(0, 0, 9),))]
    assert list(epoch.windows(1)) == [Window(1, 0, 0, 9, (Segment(0, 9, 10), Segment(1, 0, 8)))]
    assert list(epoch.windows(2)) == [
        Window(2, 0, 0, 6, (Segment(1, 8, 10), Segment(2, 0, 4))),
        Window(2, 1, 6, 6, (Segment(3, 0, 6),)),
    ]
    assert list(epoch.windows(2, 6)) == [Window(2, 1, 6, 6, (Segment(3, 0, 6),))]
    assert len(epoch.windows(2, 12)) == 0
    assert epoch.windows(2)[-1] == Window(2, 1, 6, 6, (Segment(3, 0, 6),))
    for outside in (2, -3):
        with pytest.raises(IndexError):
            epoch.windows(2)[outside]


def test_an_absent_lane_has_no_windows() -> None:
    plan = plan_of([4, 4], 2, 4, "window", window=2)
    assert plan.leaf_rows(0) == (0, 1, 0, 1)
    epoch = plan.epoch(0)
    assert [len(epoch.windows(lane)) > 0 for lane in range(4)] == [False, True, False, True]
    assert epoch.row_numbers(0, 0).tolist() == []
    assert epoch.row_numbers(0, 0).dtype == np.int64


@pytest.mark.parametrize("done", [0.1, 0.5, 0.9])
def test_a_resume_reads_only_what_is_left(done: float) -> None:
    """Case 12.01: fragments wholly before the position are never read, at 10, 50 or 90 % of the epoch."""
    plan = plan_of([100] * 400, 100, 4, "window", window=5)
    step = int(done * plan.steps_per_epoch)
    epoch = plan.epoch(2)
    needed, planned = set(), set()
    for lane in range(4):
        position, _ = plan.lane_range(lane, step)
        windows = epoch.windows(lane, position)
        planned |= {part.fragment for window in windows for part in window.segments}
        rows = np.concatenate([epoch.row_numbers(lane, at) for at in range(step, plan.steps_per_epoch)])
        needed |= set((rows // 100).tolist())
        assert len(windows) == 20 - position // 500
    assert needed <= planned
    assert len(planned) <= len(needed) + 4 * 5  # at most one window per lane was begun before


def test_permutations_are_keyed_by_epoch_lane_and_window() -> None:
    plan = plan_of([50] * 8, 40, 2, "window", window=2)
    orders = {
        tuple(plan.epoch(number).window_permutation(window).tolist())
        for number in range(3)
        for lane in range(2)
        for window in plan.epoch(number).windows(lane)
    }
    assert len(orders) == 3 * 2 * 2


def test_a_reader_needs_only_window_seed_and_epoch() -> None:
    plan = plan_of([50] * 8, 40, 2, "window", window=2, seed=9)
    window = pickle.loads(pickle.dumps(plan.epoch(3).windows(1)[1]))
    assert np.array_equal(window_permutation(window, 9, 3), plan.epoch(3).window_permutation(window))
    assert np.array_equal(np.sort(window_permutation(window, 9, 3)), np.arange(window.rows))


def test_unshuffled_windows_are_read_as_they_are() -> None:
    epoch = plan_of([50] * 8, 40, 2, "none", window=2).epoch(0)
    assert epoch.window_permutation(epoch.windows(0)[0]).tolist() == list(range(100))


def test_full_has_no_windows_and_lanes_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="no windows"):
        plan_of([10], 5, 2, "full", window=2).epoch(0).windows(0)
    with pytest.raises(IndexError, match="lane 2"):
        plan_of([10], 5, 2, "none", window=2).epoch(0).windows(2)
