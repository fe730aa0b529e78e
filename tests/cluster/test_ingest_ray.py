"""Ray Data carries the rows, and whatever happens to it, the rows are the plan's (DESIGN section 6)."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import ray
import torch
from waiting import DEADLINE_S, until

from god_ray.errors import DataError, RecipeError
from god_ray.ingest import ahead, memory_feed, raydata
from god_ray.ingest.feed import Feed, open_feed
from god_ray.ingest.parquet import ParquetSource
from god_ray.plan import DataPlan
from god_ray.recipe import load_function

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from ingest_data import check_leaf, check_steps, plan_of, weighing, write

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ParquetSource:
    files = [(3000, 100), (0, 1), (20_000, 20_000), (1000, 50)]
    return weighing(write(tmp_path_factory.mktemp("rows"), files), 8192)


opened: list[Feed] = []


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()
    until(lambda: ray.available_resources().get("CPU") == 4, "all CPUs are free again")
    names = {thread.name.split("-dataset")[0] for thread in threading.enumerate()}
    assert not names & {"god_ray-load", "god_ray-ray", "StreamingExecutor"}


def open_ray(source: ParquetSource, plan: DataPlan, **options: object) -> Feed:
    options = {"patience_s": DEADLINE_S, **options}
    opened.append(open_feed(source, plan, reader="ray", **options))  # type: ignore[arg-type]
    return opened[-1]


def walk(feed: Feed, plan: DataPlan, first: int, last: int) -> None:
    feed.start(plan.cursor_at(first), range(plan.lanes))
    for step in range(first, last):
        for lane in range(plan.lanes):
            feed.leaf(plan.cursor_at(step), lane)


def contents(feed: Feed, plan: DataPlan) -> list[bytes]:
    """Every tensor and row number of an epoch, as bytes."""
    seen = []
    feed.start(plan.cursor_at(0), range(plan.lanes))
    for step in range(plan.steps_per_epoch):
        for lane in range(plan.lanes):
            leaf = feed.leaf(plan.cursor_at(step), lane)
            if leaf is not None:
                seen += [leaf.rows.tobytes(), *(tensor.numpy().tobytes() for tensor in leaf.batch.values())]
    feed.close()
    return seen


def test_a_set_in_memory_comes_through_ray(source: ParquetSource) -> None:
    """All but the first read, which a worker does at once."""
    plan = plan_of(source, "full", 500, 4)
    feed = open_ray(source, plan)
    check_steps(feed, plan, 0, 2 * plan.steps_per_epoch, range(4))
    feed.close()
    assert feed.counters["executions"] == 1
    first = memory_feed.tasks(source)[0].rows
    assert 0 < first < source.manifest.num_rows / 4
    assert feed.counters["rows_by_worker"] == first
    assert feed.counters["rows_by_ray"] == source.manifest.num_rows - first


def test_all_but_the_first_windows_come_through_ray(tmp_path: Path) -> None:
    """Given the time: three windows of ten steps per lane, and the test waits for the next ones."""
    source = write(tmp_path, [(6000, 100)])
    plan = plan_of(source, "none", 200, 2, 10)
    feed = open_ray(source, plan, num_steps=plan.steps_per_epoch)
    counters = feed.counters
    feed.start(plan.cursor_at(0), range(2))
    for step in range(30):
        for lane in range(2):
            check_leaf(feed.leaf(plan.cursor_at(step), lane), plan, plan.cursor_at(step), lane)
        if step % 10 == 0:
            wanted = min(4 + step // 5, 6)
            until(lambda n=wanted: counters["windows_by_ray"] + 2 >= n, "the next windows came")  # type: ignore[misc]
    feed.close()
    assert (counters["windows_by_ray"], counters["rows_by_ray"]) == (4, 4000)
    assert (counters["windows_by_worker"], counters["rows_by_worker"]) == (2, 2000)
    assert counters["executions"] == 1
    assert counters["dropped"] == counters["failures"] == 0


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
def test_ray_and_direct_give_the_same_bytes(source: ParquetSource, shuffle: str) -> None:
    def preprocess(table: pa.Table) -> pa.Table:
        return table.append_column("whole", pa.array([table.num_rows] * table.num_rows))

    plan = plan_of(source, shuffle, 700, 3, 4)
    by_ray = contents(open_ray(source, plan, preprocess=preprocess), plan)
    assert by_ray == contents(open_feed(source, plan, reader="direct", preprocess=preprocess), plan)


def test_many_executions_and_starts_anywhere(source: ParquetSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "FIRST_TASKS", 3)
    monkeypatch.setattr(ahead, "MAX_TASKS", 5)
    monkeypatch.setattr(ahead, "OVERLAP", 2)
    plan = plan_of(source, "window", 300, 3, 2)
    feed = open_ray(source, plan, num_steps=3 * plan.steps_per_epoch)
    check_steps(feed, plan, 0, plan.steps_per_epoch + 10, range(3))
    check_steps(feed, plan, 40, 60, range(2))
    check_steps(feed, plan, plan.steps_per_epoch, 2 * plan.steps_per_epoch, range(1, 3))
    feed.close()
    assert feed.counters["failures"] == 0


USER_FILE = """
import pyarrow as pa
from neighbour import FACTOR
import torch

def preprocess(table):
    return table.append_column("scaled", pa.array([FACTOR * i for i in table["id"].to_pylist()]))

def fails(table):
    numbers = table["id"].to_pylist()
    return table["no such column"] if numbers[0] > 3000 else table

def collate(table):
    return {"scaled": torch.tensor(table["scaled"].to_pylist())}
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("FACTOR = 3\n")
    (tmp_path / "mine.py").write_text(USER_FILE)
    return tmp_path / "mine.py"


def test_a_users_file_works_in_read_tasks(source: ParquetSource, user_file: Path) -> None:
    plan = plan_of(source, "full", 500, 4)
    functions = {name: load_function(f"{user_file}:{name}") for name in ("preprocess", "collate")}
    feed = open_ray(source, plan, **functions)
    feed.start(plan.cursor_at(0), range(4))
    leaf = feed.leaf(plan.cursor_at(0), 2)
    assert leaf is not None
    assert leaf.batch["scaled"].tolist() == (3 * leaf.rows).tolist()
    assert isinstance(leaf.batch["scaled"], torch.Tensor)
    feed.close()
    assert feed.counters["rows_by_ray"] == source.manifest.num_rows - memory_feed.tasks(source)[0].rows
    assert feed.counters["failures"] == 0


@pytest.mark.parametrize("shuffle", ["full", "window"])
def test_a_failing_preprocess_is_the_users_error(
    source: ParquetSource,
    user_file: Path,
    shuffle: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = plan_of(source, shuffle, 500, 4, 2)
    feed = open_ray(source, plan, preprocess=load_function(f"{user_file}:fails"))
    with pytest.raises(RecipeError) as caught:
        walk(feed, plan, 0, plan.steps_per_epoch)
    feed.close()
    assert f"{user_file}:11: KeyError" in str(caught.value)
    assert 'return table["no such column"] if numbers[0] > 3000' in str(caught.value)
    assert "ray::" not in capfd.readouterr().err
    if shuffle == "full":
        assert f"the worker does: RecipeError: {user_file}:11: KeyError" in caplog.text


def test_a_damaged_file_is_a_data_error(tmp_path: Path) -> None:
    source = weighing(write(tmp_path, [(1000, 100), (1000, 100)]), 1 << 14)
    (tmp_path / "001.parquet").write_bytes(b"x" * source.sizes[1])
    plan = plan_of(source, "full", 100, 2)
    feed = open_ray(source, plan)
    with pytest.raises(DataError, match=r"001\.parquet cannot be read"):
        walk(feed, plan, 0, 1)
    feed.close()
    assert feed.counters["failures"] == 1


def test_what_cannot_travel_is_read_by_the_worker(source: ParquetSource) -> None:
    """A preprocess that Ray cannot pickle still works."""
    lock = threading.Lock()

    def preprocess(table: pa.Table) -> pa.Table:
        with lock:
            return table

    plan = plan_of(source, "full", 500, 4)
    feed = open_ray(source, plan, preprocess=preprocess)
    check_steps(feed, plan, 0, 5, range(4))
    feed.close()
    assert feed.counters["rows_by_worker"] == source.manifest.num_rows


def test_killed_read_tasks_change_nothing(source: ParquetSource, tmp_path: Path) -> None:
    """The first processes that read are killed in the middle of it; Ray reads again."""
    go, trainer = tmp_path / "go", os.getpid()

    def preprocess(table: pa.Table) -> pa.Table:
        if os.getpid() != trainer and not go.exists():
            (tmp_path / f"pid-{os.getpid()}").touch()
            while not go.exists():
                time.sleep(0.01)
        return table

    large = weighing(source, 1 << 14)
    plan = plan_of(large, "full", 500, 4)
    feed = open_ray(large, plan, preprocess=preprocess)
    feed.start(plan.cursor_at(0), range(4))
    pids = lambda: [int(path.name[4:]) for path in tmp_path.glob("pid-*")]  # noqa: E731
    until(lambda: len(pids()) >= 2, "two tasks read")
    for pid in pids():
        os.kill(pid, signal.SIGKILL)
    go.touch()
    check_steps(feed, plan, 0, plan.steps_per_epoch, range(4))
    feed.close()
    first = memory_feed.tasks(large)[0].rows
    assert feed.counters["rows_by_ray"] == source.manifest.num_rows - first
    assert (feed.counters["rows_by_worker"], feed.counters["failures"]) == (first, 0)


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
def test_with_all_cpus_held_training_goes_on(source: ParquetSource, shuffle: str) -> None:
    @ray.remote(num_cpus=4)
    class Holder:
        def ready(self) -> None:
            pass

    holder = Holder.remote()
    ray.get(holder.ready.remote())
    plan = plan_of(source, shuffle, 500, 4, 2)
    feed = open_ray(source, plan, patience_s=0.3)
    check_steps(feed, plan, 0, plan.steps_per_epoch, range(4))
    check_steps(feed, plan, 3, 6, range(2))
    feed.close()  # the execution that still waits for a CPU ends too
    assert "god_ray-ray" not in {thread.name for thread in threading.enumerate()}
    ray.kill(holder)
    assert feed.counters["executions"] >= 1
    assert feed.counters["windows_by_ray"] == 0


def test_an_execution_that_is_ahead_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's scheduling loop runs in the trainer's process: it must not spin there while nothing is wanted."""
    rounds = []
    original = raydata.ExecutorCallback.on_execution_step

    def counted(self: raydata.ExecutorCallback, executor: object) -> None:
        rounds.append(executor)
        original(self, executor)

    monkeypatch.setattr(raydata.ExecutorCallback, "on_execution_step", counted)
    source = write(tmp_path, [(6000, 100)])
    plan = plan_of(source, "window", 200, 2, 10)
    feed = open_ray(source, plan)
    feed.start(plan.cursor_at(0), range(2))
    for lane in range(2):
        feed.leaf(plan.cursor_at(0), lane)
    until(lambda: feed.counters["windows_by_ray"] == 2, "both next windows came")
    threading.Event().wait(1.0)  # what is still under way comes too
    before = len(rounds)
    threading.Event().wait(1.0)
    assert len(rounds) - before <= 3
    feed.close()


def test_closing_in_the_middle_ends_everything(source: ParquetSource) -> None:
    for shuffle in ("full", "window"):
        plan = plan_of(source, shuffle, 100, 4, 1)
        feed = open_ray(source, plan)
        feed.start(plan.cursor_at(0), range(4))
        if shuffle == "window":
            feed.leaf(plan.cursor_at(0), 0)
        feed.close()


def test_reader_ray_needs_ray(source: ParquetSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ValueError, match="initialised Ray"):
        open_feed(source, plan_of(source, "full", 100, 4), reader="ray")
