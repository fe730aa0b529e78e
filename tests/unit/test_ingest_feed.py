"""Leaves are the plan's, in every mode, from any cursor, with only the needed fragments read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from ingest_data import check_leaf, check_steps, plan_of, rows_table, write

from god_ray.errors import DataError, RecipeError
from god_ray.ingest import parquet
from god_ray.ingest.feed import open_feed
from god_ray.ingest.memory_feed import tasks
from god_ray.ingest.parquet import ParquetSource
from god_ray.plan import Cursor, DataPlan

MODES = ("full", "window", "none")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ParquetSource:
    """21 fragments: small ones, an empty file, and row groups that are cut."""
    files = [(500, 100), (1, 1), (0, 1), (40_000, 40_000), (777, 60)]
    return write(tmp_path_factory.mktemp("rows"), files)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    yield
    left = [thread for thread in threading.enumerate() if thread.name == "god_ray-load"]
    assert not left


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize(
    ("batch_size", "lanes", "window"), [(64, 4, 3), (1000, 3, 1), (333, 7, 2), (40_000, 4, 100), (5, 7, 5)]
)
def test_two_epochs_are_the_plan(
    source: ParquetSource, shuffle: str, batch_size: int, lanes: int, window: int
) -> None:
    plan = plan_of(source, shuffle, batch_size, lanes, window)
    steps = min(2 * plan.steps_per_epoch, 1500)
    feed = open_feed(source, plan, reader="direct", num_steps=steps)
    rows = check_steps(feed, plan, 0, steps, range(lanes))
    feed.close()
    if steps == 2 * plan.steps_per_epoch:
        assert rows == 2 * source.manifest.num_rows
    assert feed.counters["random_reads"] == 0
    assert feed.counters["windows_by_ray"] == 0


@pytest.mark.parametrize("shuffle", MODES)
def test_it_starts_anywhere_with_any_lanes_and_again(source: ParquetSource, shuffle: str) -> None:
    plan = plan_of(source, shuffle, 256, 5, 2)
    per_epoch = plan.steps_per_epoch
    feed = open_feed(source, plan, reader="direct")
    for first, count, lanes in [
        (0, 3, range(5)),
        (3, 4, range(2)),  # shrink at once
        (7, 2, range(1, 4)),  # other lanes
        (per_epoch - 2, 4, range(5)),  # across the epoch's end
        (5, 2, range(5)),  # back
        (3 * per_epoch, 2, range(4, 5)),  # exactly on a boundary
    ]:
        check_steps(feed, plan, first, first + count, lanes)
    feed.close()


@pytest.mark.parametrize("shuffle", MODES)
def test_leaves_out_of_turn_disturb_nothing(source: ParquetSource, shuffle: str) -> None:
    plan = plan_of(source, shuffle, 300, 4, 2)
    feed = open_feed(source, plan, reader="direct")
    feed.start(plan.cursor_at(10), range(2))
    generator = np.random.default_rng(0)
    for step in range(10, 40):
        cursor = plan.cursor_at(step)
        for lane in range(2):
            elsewhere = plan.cursor_at(int(generator.integers(0, 3 * plan.steps_per_epoch)))
            for audited in (cursor, elsewhere):
                other = int(generator.integers(0, 4))
                check_leaf(feed.leaf(audited, other), plan, audited, other)
            check_leaf(feed.leaf(cursor, lane), plan, cursor, lane)
            check_leaf(feed.leaf(cursor, lane), plan, cursor, lane)  # and once more
    feed.close()


@pytest.mark.parametrize("shuffle", ["window", "none"])
def test_lanes_may_be_asked_in_any_order(tmp_path: Path, shuffle: str) -> None:
    """Windows far smaller than a leaf, highest lane first: the bound on held windows must give way."""
    source = write(tmp_path, [(900, 3)])
    plan = plan_of(source, shuffle, 90, 3, 1)
    feed = open_feed(source, plan, reader="direct")
    feed.start(plan.cursor_at(0), range(3))
    for step in range(plan.steps_per_epoch + 3):
        for lane in (2, 1, 0):
            check_leaf(feed.leaf(plan.cursor_at(step), lane), plan, plan.cursor_at(step), lane)
    feed.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(lo, hi) in global rows of every read, in the order of reading."""
    seen: list[tuple[int, int]] = []
    original = parquet.Reader.read

    def counted(self: parquet.Reader, piece: parquet.Piece) -> pa.Table:
        seen.append((piece.first_row, piece.first_row + piece.rows))
        return original(self, piece)

    monkeypatch.setattr(parquet.Reader, "read", counted)
    return seen


@pytest.mark.parametrize("shuffle", ["window", "none"])
@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.97])
def test_resuming_reads_only_the_windows_still_needed(
    tmp_path: Path, reads: list[tuple[int, int]], shuffle: str, fraction: float
) -> None:
    source = write(tmp_path, [(6400, 100)])
    plan = plan_of(source, shuffle, 64, 2, 4)
    first, last = int(plan.steps_per_epoch * fraction), plan.steps_per_epoch
    feed = open_feed(source, plan, reader="direct", num_steps=last)
    check_steps(feed, plan, first, last, range(2))
    feed.close()
    starts = source.manifest.start
    needed = [
        (int(starts[part.fragment]) + part.lo, int(starts[part.fragment]) + part.hi)
        for lane in range(2)
        for window in plan.epoch(0).windows(lane, plan.lane_range(lane, first)[0])
        for part in window.segments
    ]
    assert sorted(reads) == sorted(needed)
    assert len(reads) <= 64 * (1 - fraction) + 2 * 4


def test_a_leaf_out_of_turn_reads_only_its_fragments(tmp_path: Path, reads: list[tuple[int, int]]) -> None:
    source = write(tmp_path, [(6400, 100)])
    plan = plan_of(source, "none", 64, 2, 8)
    feed = open_feed(source, plan, reader="direct")
    cursor = plan.cursor_at(20)
    check_leaf(feed.leaf(cursor, 1), plan, cursor, 1)  # 32 rows of lane 1, from 3200 + 640 on
    assert reads == [(3800, 3900)]
    feed.close()


def test_reading_ahead_is_bounded(tmp_path: Path, reads: list[tuple[int, int]]) -> None:
    """The current window and the next of each lane, and nothing beyond the run's last step."""
    source = write(tmp_path, [(6400, 100)])
    plan = plan_of(source, "window", 64, 2, 4)
    feed = open_feed(source, plan, reader="direct", num_steps=plan.steps_per_epoch)
    feed.start(plan.cursor_at(0), range(2))
    for lane in range(2):
        feed.leaf(plan.cursor_at(0), lane)
    deadline = threading.Event()
    while len(reads) < 4 * 4 and not deadline.wait(0.01):
        pass
    deadline.wait(0.1)
    assert len(reads) <= 4 * 4 + 4  # a window may begin in the middle of a fragment
    feed.close()


def test_windows_in_memory_are_used_again(tmp_path: Path, reads: list[tuple[int, int]]) -> None:
    source = write(tmp_path, [(6400, 100)])
    plan = plan_of(source, "window", 64, 2, 16)  # two windows per lane, all held at once
    feed = open_feed(source, plan, reader="direct", num_steps=plan.steps_per_epoch)
    check_steps(feed, plan, 0, plan.steps_per_epoch // 2, range(2))
    before = len(reads)
    check_steps(feed, plan, plan.steps_per_epoch // 2 - 1, plan.steps_per_epoch, range(2))
    assert len(reads) - before <= 2 * 16
    feed.close()


def test_a_batch_is_the_callers_own(source: ParquetSource) -> None:
    """In-place changes must not reach what a retry or an audit reads."""
    for shuffle in MODES:
        plan = plan_of(source, shuffle, 256, 2)
        feed = open_feed(source, plan, reader="direct")
        for _ in range(2):
            feed.start(plan.cursor_at(4), range(2))
            leaf = feed.leaf(plan.cursor_at(4), 1)
            check_leaf(leaf, plan, plan.cursor_at(4), 1)
            assert leaf is not None
            leaf.batch["x"].zero_()
            leaf.batch["id"] -= 1
        check_leaf(feed.leaf(plan.cursor_at(4), 1), plan, plan.cursor_at(4), 1)
        feed.close()


def test_a_set_in_memory_is_read_once(source: ParquetSource, reads: list[tuple[int, int]]) -> None:
    plan = plan_of(source, "full", 512, 4)
    feed = open_feed(source, plan, reader="direct")
    for _ in range(3):
        check_steps(feed, plan, 0, 3, range(4))
    feed.close()
    assert sum(hi - lo for lo, hi in reads) == source.manifest.num_rows
    assert reads == sorted(reads)


def test_whole_set_tasks_are_few_and_cover_everything_in_order(tmp_path: Path) -> None:
    source = write(tmp_path, [(3000, 10)])
    large = ParquetSource(source.schema, source.manifest, 1 << 20, source.sizes, source.reader)
    assert len(tasks(source)) == 1
    assert len(tasks(large)) == 64
    for made in (tasks(source), tasks(large)):
        pieces = [piece for task in made for piece in task.pieces]
        assert [piece.first_row for piece in pieces] == list(range(0, 3000, 10))


@pytest.mark.parametrize("shuffle", MODES)
def test_preprocess_and_collate(source: ParquetSource, shuffle: str) -> None:
    def preprocess(table: pa.Table) -> pa.Table:
        assert "__row" not in table.column_names
        assert table.num_rows <= 16_384
        return table.append_column("text", pa.array([str(i) for i in table["id"].to_pylist()]))

    def collate(table: pa.Table) -> dict[str, torch.Tensor]:
        assert table.column_names == ["id", "x", "even", "half", "text"]
        return {"twice": torch.tensor([2 * int(text) for text in table["text"].to_pylist()])}

    plan = plan_of(source, shuffle, 4000, 3, 4)
    feed = open_feed(source, plan, reader="direct", preprocess=preprocess, collate=collate)
    feed.start(plan.cursor_at(0), range(3))
    for step in range(plan.steps_per_epoch):
        for lane in range(3):
            leaf = feed.leaf(plan.cursor_at(step), lane)
            if leaf is not None:
                assert leaf.rows.tolist() == plan.epoch(0).row_numbers(lane, step).tolist()
                assert leaf.batch["twice"].tolist() == (2 * leaf.rows).tolist()
    feed.close()


def drifting(table: pa.Table) -> pa.Table:
    kind = pa.int8() if table["id"][0].as_py() else pa.int16()
    return table.append_column("y", pa.array([1] * table.num_rows, kind))


BAD_PREPROCESS = {
    "drops": (lambda t: t.slice(1), "rows for"),
    "repeats": (lambda t: pa.concat_tables([t, t]), "rows for"),
    "not a table": (lambda t: {}, "returned a dict"),
    "no columns": (lambda t: t.select([]), "cannot be used"),
    "reserved": (lambda t: t.append_column("__row", t["id"]), "cannot be used"),
    "raises": (lambda t: t["nothing"], "nothing"),
    "drifts": (drifting, "different columns"),
}


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize("name", BAD_PREPROCESS)
def test_a_bad_preprocess_is_refused(tmp_path: Path, shuffle: str, name: str) -> None:
    preprocess, said = BAD_PREPROCESS[name]
    source = write(tmp_path, [(1000, 100)])
    plan = plan_of(source, shuffle, 100, 2, 2)
    feed = open_feed(source, plan, reader="direct", preprocess=preprocess)
    with pytest.raises(RecipeError, match=said) as caught:
        check_all_leaves(feed, plan)
    feed.close()
    if name == "raises":
        assert str(Path(__file__)) in str(caught.value)


def check_all_leaves(feed, plan: DataPlan) -> None:  # type: ignore[no-untyped-def]
    feed.start(plan.cursor_at(0), range(plan.lanes))
    for step in range(plan.steps_per_epoch):
        for lane in range(plan.lanes):
            feed.leaf(plan.cursor_at(step), lane)


BAD_COLLATE = {
    "not a dict": (lambda t: torch.zeros(t.num_rows), "returned a Tensor"),
    "empty": (lambda t: {}, "empty dict"),
    "not a tensor": (lambda t: {"x": [1]}, "returned a list for 'x'"),
    "a scalar": (lambda t: {"x": torch.tensor(1)}, "shape \\(\\) for 'x'"),
    "too few": (lambda t: {"x": torch.zeros(t.num_rows - 1)}, "for 'x', from 50 rows"),
    "raises": (lambda t: {"x": t["nothing"]}, "nothing"),
}


@pytest.mark.parametrize("name", BAD_COLLATE)
def test_a_bad_collate_is_refused(tmp_path: Path, name: str) -> None:
    collate, said = BAD_COLLATE[name]
    source = write(tmp_path, [(1000, 100)])
    plan = plan_of(source, "full", 100, 2)
    feed = open_feed(source, plan, reader="direct", collate=collate)
    feed.start(plan.cursor_at(0), range(2))
    with pytest.raises(RecipeError, match=said):
        feed.leaf(plan.cursor_at(0), 0)
    feed.close()


@pytest.mark.parametrize("shuffle", MODES)
def test_a_file_that_breaks_while_training_surfaces_in_leaf(tmp_path: Path, shuffle: str) -> None:
    source = write(tmp_path, [(1000, 100), (1000, 100)])
    plan = plan_of(source, shuffle, 100, 2, 2)
    feed = open_feed(source, plan, reader="direct")
    broken = tmp_path / "001.parquet"
    broken.write_bytes(broken.read_bytes()[:-100])
    for _ in range(2):  # and it stays an error
        with pytest.raises(DataError, match=r"001.parquet has changed"):
            check_all_leaves(feed, plan)
    feed.close()


def test_close_ends_a_feed_in_the_middle(source: ParquetSource) -> None:
    for shuffle in MODES:
        plan = plan_of(source, shuffle, 64, 4)
        feed = open_feed(source, plan, reader="direct")
        feed.close()  # before start
        feed = open_feed(source, plan, reader="direct")
        feed.start(plan.cursor_at(0), range(4))
        feed.close()
        feed.close()


@pytest.mark.parametrize("shuffle", MODES)
def test_a_leaf_may_be_asked_for_before_the_start(source: ParquetSource, shuffle: str) -> None:
    plan = plan_of(source, shuffle, 64, 4)
    feed = open_feed(source, plan, reader="direct")
    check_leaf(feed.leaf(plan.cursor_at(9), 3), plan, plan.cursor_at(9), 3)
    check_steps(feed, plan, 0, 5, range(4))
    feed.close()


def test_columns_are_chosen(tmp_path: Path) -> None:
    write(tmp_path, [(1000, 100)])
    source = ParquetSource.open([str(tmp_path)], ["x", "id"])
    plan = plan_of(source, "full", 100, 2)
    feed = open_feed(source, plan, reader="direct")
    feed.start(plan.cursor_at(0), range(2))
    leaf = feed.leaf(Cursor(0, 0, 0), 0)
    assert leaf is not None
    assert list(leaf.batch) == ["x", "id"]
    assert {name: tensor.dtype for name, tensor in leaf.batch.items()} == {
        "x": torch.float32,
        "id": torch.int64,
    }
    feed.close()


def test_the_table_of_the_tests_is_what_it_says() -> None:
    assert rows_table(5, 7)["x"].to_pylist() == [[5, 5, 5], [6, 6, 6]]
