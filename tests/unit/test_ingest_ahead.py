"""What comes ahead of need is used, what does not is read by the worker, and nothing ever hangs.

A scripted execution stands in for Ray Data: each table is released by the test.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from ingest_data import check_leaf, check_steps, plan_of, weighing, write

from god_ray.ingest import ahead
from god_ray.ingest.ahead import AheadCarrier
from god_ray.ingest.carrier import Abandoned, Counters, DirectCarrier, new_counters
from god_ray.ingest.memory_feed import MemoryFeed
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.supply import Supply
from god_ray.ingest.tasks import Task, read_task
from god_ray.ingest.window_feed import WindowFeed
from god_ray.plan import DataPlan

DEADLINE_S = 20.0


class Script:
    """Executions that bring tables when told to."""

    def __init__(self, source: ParquetSource) -> None:
        self.source = source
        self.changed = threading.Condition()
        self.released = 0
        """So many tables may come, in the order in which they were asked for."""
        self.delivered: list[object] = []
        self.executions: list[Scripted] = []
        self.broken: Callable[[Task, pa.Table], pa.Table] = lambda task, table: table

    def begin(self, tasks: Sequence[Task]) -> Scripted:
        first = sum(len(execution.tasks) for execution in self.executions)
        self.executions.append(Scripted(self, tasks, first))
        return self.executions[-1]

    def release(self, count: int) -> None:
        with self.changed:
            self.released += count
            self.changed.notify_all()


class Scripted:
    def __init__(self, script: Script, tasks: Sequence[Task], first: int) -> None:
        self.script, self.tasks, self.first = script, tasks, first
        self.stopped = self.closed = False

    def may_come(self, index: int) -> bool:
        return self.stopped or self.script.released > self.first + index

    def tables(self) -> Generator[tuple[int, pa.Table], None, None]:
        script = self.script
        try:
            for index, task in enumerate(self.tasks):
                with script.changed:
                    script.changed.wait_for(partial(self.may_come, index))
                    if self.stopped:
                        return
                    script.delivered.append(task.key)
                yield index, script.broken(task, read_task(script.source.reader, task, None))
        finally:
            self.closed = True

    def stop(self) -> None:
        with self.script.changed:
            self.stopped = True
            self.script.changed.notify_all()


@pytest.fixture
def source(tmp_path: Path) -> ParquetSource:
    return write(tmp_path, [(400, 10)])


class World:
    def __init__(self, source: ParquetSource) -> None:
        self.counters: Counters = new_counters()
        self.changed = threading.Condition()
        self.script = Script(source)
        self.direct = DirectCarrier(source.reader, None, self.counters)
        self.carrier = AheadCarrier(self.script.begin, self.direct, self.counters, self.changed, 1 << 20)
        self.source = source
        self.tasks = [Task(i, (source.piece(i, 0, 10),)) for i in range(source.manifest.num_fragments)]

    def supply(self, plan: DataPlan, num_steps: int | None = None) -> Supply:
        return Supply(
            self.source, plan, self.carrier, self.direct, self.counters, None, num_steps, self.changed
        )

    def get(self, number: int, wait: bool) -> None:
        table = self.carrier.get(self.tasks[number], lambda: None if wait else 0.0)
        assert table["id"].to_pylist() == list(range(10 * number, 10 * number + 10))

    def until(self, condition: Callable[[], bool]) -> None:
        """Looks again and again: not everything that is counted is also announced."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            threading.Event().wait(0.005)

    def until_here(self, number: int) -> None:
        self.until(lambda: number in self.carrier._session.tables)

    def brought(self) -> tuple[int, int, int]:
        counters = self.counters
        return counters["windows_by_ray"], counters["windows_by_worker"], counters["dropped"]


@pytest.fixture
def world(source: ParquetSource) -> Iterator[World]:
    made = World(source)
    yield made
    made.carrier.close()
    assert all(execution.closed for execution in made.script.executions)
    names = [thread.name for thread in threading.enumerate()]
    assert "god_ray-ray" not in names


def test_tables_in_time_are_used(world: World) -> None:
    world.carrier.start(iter(world.tasks))
    world.script.release(40)
    for number in range(40):
        world.get(number, wait=True)
    assert world.brought() == (40, 0, 0)
    assert world.counters["rows_by_ray"] == 400


def test_executions_are_bounded_and_overlap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "FIRST_TASKS", 4)
    monkeypatch.setattr(ahead, "MAX_TASKS", 16)
    monkeypatch.setattr(ahead, "OVERLAP", 2)
    world.carrier.start(iter(world.tasks))
    world.script.release(3)
    for number in range(3):
        world.get(number, wait=True)
    world.until(lambda: len(world.script.executions) == 2)  # before the first has ended
    assert not world.script.executions[0].closed
    world.script.release(37)
    for number in range(3, 40):
        world.get(number, wait=True)
    assert [len(e.tasks) for e in world.script.executions] == [4, 16, 16, 4]
    assert world.brought() == (40, 0, 0)
    assert world.counters["executions"] == 4


def test_no_more_than_two_tables_wait(world: World) -> None:
    world.carrier.start(iter(world.tasks))
    world.script.release(40)
    world.until_here(1)
    world.until(lambda: len(world.script.delivered) == 3)  # the third is in the hand of the thread
    assert sorted(world.carrier._session.tables) == [0, 1]
    world.get(0, wait=True)
    world.until_here(2)


def test_what_is_due_and_not_there_is_read_by_the_worker_and_dropped_later(world: World) -> None:
    world.carrier.start(iter(world.tasks))
    world.get(0, wait=False)
    world.get(1, wait=False)
    assert world.brought() == (0, 2, 0)
    world.script.release(3)
    world.get(2, wait=True)
    assert world.brought() == (1, 2, 2)


def test_an_execution_that_lags_is_replaced_by_one_further_ahead(world: World) -> None:
    world.carrier.start(iter(world.tasks))
    for number in range(10):
        world.get(number, wait=False)
    world.script.release(8)
    world.until(lambda: len(world.script.executions) == 2)
    assert world.script.executions[0].closed
    assert next(task.key for task in world.script.executions[1].tasks) == 14
    for number in range(10, 14):
        world.get(number, wait=True)  # given up: does not wait for Ray
    world.script.release(1000)
    for number in range(14, 40):
        world.get(number, wait=True)
    assert world.brought() == (26, 14, 8)


def test_a_failed_execution_is_gone_around_and_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fails(task: Task, table: pa.Table) -> pa.Table:
        if task.key == 3:
            raise OSError("the node is gone")
        return table

    world.script.broken = fails
    world.carrier.start(iter(world.tasks))
    world.script.release(40)
    with caplog.at_level(logging.WARNING, logger="god_ray.ingest"):
        for number in range(40):
            world.get(number, wait=True)
    assert "the worker does: OSError: the node is gone" in caplog.text
    assert world.counters["failures"] == 1
    assert world.brought() == (11, 29, 0)  # 3 before, 8 of the next execution


@pytest.mark.parametrize(
    "broken",
    [
        lambda task, table: table.slice(1),
        lambda task, table: table.take(list(range(9, -1, -1))),
        lambda task, table: pa.concat_tables([table, table]),
    ],
    ids=["short", "reversed", "twice"],
)
def test_wrong_rows_are_never_used(world: World, broken: Callable[[Task, pa.Table], pa.Table]) -> None:
    world.script.broken = broken
    world.carrier.start(iter(world.tasks))
    world.script.release(40)
    for number in range(40):
        world.get(number, wait=True)
    assert world.brought() == (0, 40, 0)
    assert world.counters["failures"] >= 2


def test_after_three_failures_ray_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "FIRST_TASKS", 4)
    monkeypatch.setattr(ahead, "MAX_TASKS", 4)

    def fails(task: Task, table: pa.Table) -> pa.Table:
        raise OSError("no")

    world.script.broken = fails
    world.carrier.start(iter(world.tasks))
    world.script.release(40)
    for number in range(40):
        world.get(number, wait=True)
    assert world.counters["failures"] == 3
    assert world.counters["executions"] == 3


def test_a_new_start_forgets_the_old_one_without_waiting(world: World) -> None:
    world.carrier.start(iter(world.tasks[:20]))
    world.script.release(1)
    world.until_here(0)
    world.carrier.start(iter(world.tasks[20:]))
    world.until(lambda: len(world.script.executions) == 2 and world.script.executions[0].closed)
    world.script.release(1000)
    for number in range(20, 40):
        world.get(number, wait=True)
    assert world.brought() == (20, 0, 0)


def test_whoever_no_longer_wants_a_task_is_let_go(world: World) -> None:
    def patience() -> float | None:
        raise Abandoned

    world.carrier.start(iter(world.tasks))
    with pytest.raises(Abandoned):
        world.carrier.get(world.tasks[0], patience)


def test_a_start_with_nothing_to_carry(world: World) -> None:
    world.carrier.start(iter(()))
    world.get(0, wait=True)
    assert world.brought() == (0, 1, 0)
    assert world.script.executions == []


# Whole feeds over scripted executions


@pytest.mark.parametrize("released", [0, 5, 1000])
def test_a_windowed_feed_is_the_plan_however_much_comes(source: ParquetSource, released: int) -> None:
    world = World(source)
    plan = plan_of(source, "window", 20, 3, 2)
    steps = 3 * plan.steps_per_epoch
    feed = WindowFeed(world.supply(plan, steps))
    world.script.release(released)
    assert check_steps(feed, plan, 0, steps, range(3)) == 1200
    check_steps(feed, plan, 7, 20, range(1, 3))
    feed.close()
    assert world.counters["rows_by_ray"] + world.counters["rows_by_worker"] >= 1200
    if released == 0:
        assert world.brought()[0] == 0


@pytest.mark.parametrize("released", [0, 1, 1000])
def test_a_set_in_memory_is_the_plan_however_much_comes(source: ParquetSource, released: int) -> None:
    """With nothing arriving the worker reads the rest itself after its patience."""
    large = weighing(source, 1 << 20)
    world = World(large)
    plan = plan_of(large, "full", 20, 3)
    feed = MemoryFeed(world.supply(plan), patience_s=0.05)
    world.script.release(released)
    feed.start(plan.cursor_at(0), range(3))
    world.until(lambda: world.counters["rows_by_ray"] == min(10 * released, 390))  # nobody waits yet
    assert check_steps(feed, plan, 0, plan.steps_per_epoch, range(3)) == 400
    feed.close()
    assert world.counters["rows_by_ray"] == min(10 * released, 390)
    assert world.counters["rows_by_ray"] + world.counters["rows_by_worker"] == 400


def test_a_window_that_is_not_due_is_left_to_ray(source: ParquetSource) -> None:
    """Only each lane's first window is due at the start, though the loader is ahead of the trainer."""
    world = World(source)
    plan = plan_of(source, "window", 20, 2, 5)
    feed = WindowFeed(world.supply(plan))
    feed.start(plan.cursor_at(0), range(2))
    world.until(lambda: world.counters["windows_by_worker"] == 2)
    assert not threading.Event().wait(0.1)
    assert world.counters["windows_by_worker"] == 2
    world.script.release(2)
    world.until(lambda: world.counters["windows_by_ray"] == 2)
    assert check_leaf(feed.leaf(plan.cursor_at(0), 0), plan, plan.cursor_at(0), 0) == 10
    feed.close()


def test_half_a_window_before_it_is_needed_the_next_is_read(source: ParquetSource) -> None:
    """Nothing comes from Ray: still the trainer waits only for the first window."""
    world = World(source)
    plan = plan_of(source, "none", 20, 1, 10)  # windows of 100 rows, five steps each
    feed = WindowFeed(world.supply(plan))
    feed.start(plan.cursor_at(0), range(1))
    for step in range(2):
        feed.leaf(plan.cursor_at(step), 0)
    assert not threading.Event().wait(0.1)
    assert world.counters["windows_by_worker"] == 1
    feed.leaf(plan.cursor_at(2), 0)
    world.until(lambda: world.counters["windows_by_worker"] == 2)
    feed.close()


def test_nobody_waiting_means_patience(source: ParquetSource) -> None:
    """Until `leaf` is called, Ray may take as long as it likes."""
    large = weighing(source, 1 << 20)
    world = World(large)
    plan = plan_of(large, "full", 20, 3)
    feed = MemoryFeed(world.supply(plan), patience_s=0.0)
    feed.start(plan.cursor_at(0), range(3))
    world.until(lambda: world.counters["rows_by_worker"] == 10)  # the first read is the worker's own
    assert not threading.Event().wait(0.1)
    assert world.counters["rows_by_worker"] == 10
    world.script.release(39)
    world.until(lambda: world.counters["rows_by_ray"] == 390)
    feed.close()


def test_a_set_of_one_read_is_read_at_once(source: ParquetSource) -> None:
    """Ray Data takes seconds to start; the worker reads so little in milliseconds."""
    world = World(source)
    plan = plan_of(source, "full", 20, 3)
    feed = MemoryFeed(world.supply(plan), patience_s=60.0)
    assert check_steps(feed, plan, 0, plan.steps_per_epoch, range(3)) == 400
    feed.close()
    assert (world.counters["executions"], world.counters["rows_by_worker"]) == (0, 400)
