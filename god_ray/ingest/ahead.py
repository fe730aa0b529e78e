"""Ray Data as an accelerator: what it brings in time is taken, what it does not is read by the worker.

In: tasks in the order of first need, and something that executes a bunch of them (`raydata.py`; a fake in
tests). Out: each task's table. Must not know Ray's API. Whatever happens to an execution, the rows are the
same: a failure is logged, counted and gone around; one that is the data's or the user's shows again, by its
own name, when the worker reads the task itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol

import pyarrow as pa

from god_ray.ingest.background import Background
from god_ray.ingest.carrier import Counters, DirectCarrier, Patience
from god_ray.ingest.tasks import Task, verify

logger = logging.getLogger("god_ray.ingest")

MAX_TASKS = 256
"""Per execution: each read task costs 0.7 to 0.9 ms before the first block."""
FIRST_TASKS = 32
OVERLAP = 8
"""The next execution starts when this many tasks of the one before are still to come."""
MAX_LATE = 8
"""So many late tables in a row, and the execution is given up for one that starts further ahead."""
LEAD = 4
MAX_FAILURES = 3
CLOSE_S = 10.0


class Execution(Protocol):
    """One run of a bunch of tasks."""

    def tables(self) -> Generator[tuple[int, pa.Table], None, None]:
        """(which of the tasks, its table), in their order. Blocks; closing it frees everything."""
        ...

    def stop(self) -> None:
        """From another thread: make `tables` end soon. May be called again until it has."""
        ...


Begin = Callable[[Sequence[Task]], Execution]


@dataclass(eq=False)
class _Run:
    """An execution and the thread that takes its tables."""

    before: _Run | None
    tasks: list[Task] = field(default_factory=list)
    outstanding: dict[Hashable, Task] = field(default_factory=dict)
    execution: Execution | None = None
    late: int = 0
    has_next: bool = False
    ended: bool = False
    thread: Background | None = None


@dataclass(eq=False)
class _Session:
    """From one start() to the next."""

    tasks: Iterator[Task]
    tables: dict[Hashable, pa.Table] = field(default_factory=dict)
    """Here and not yet asked for."""
    taken: set[Hashable] = field(default_factory=set)
    """Read by the worker: too late for Ray."""
    given_up: set[Hashable] = field(default_factory=set)
    """Ray will not bring them."""
    runs: list[_Run] = field(default_factory=list)
    failures: int = 0
    stopped: bool = False

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return all(run.ended for run in self.runs)


class AheadCarrier:
    """A `Carrier`. At most `max_tables` tables wait here, so that Ray's own back-pressure acts."""

    def __init__(
        self,
        begin: Begin,
        direct: DirectCarrier,
        counters: Counters,
        changed: threading.Condition,
        memory_bytes: int,
        max_tables: int = 2,
    ) -> None:
        self._begin, self._direct, self._counters, self._changed = begin, direct, counters, changed
        self._memory_bytes, self._max_tables = memory_bytes, max_tables
        self._session = _Session(iter(()), stopped=True)
        self._alive: list[_Run] = []
        """Of all sessions: those that were stopped may still be ending."""

    def start(self, tasks: Iterator[Task]) -> None:
        self._stop(self._session)
        self._session = session = _Session(tasks)
        self._launch(session, None)

    def get(self, task: Task, patience: Patience) -> pa.Table:
        table = self._wait(self._session, task.key, patience)
        if table is None:
            return self._direct.get(task, patience)
        self._counters["windows_by_ray"] += 1
        self._counters["rows_by_ray"] += task.rows
        return table

    def close(self) -> None:
        self._stop(self._session)
        for run in self._alive:
            if run.thread is not None and not run.thread.join(CLOSE_S):
                logger.warning("an execution of Ray Data did not end within %.0f s", CLOSE_S)

    def _wait(self, session: _Session, key: Hashable, patience: Patience) -> pa.Table | None:
        with self._changed:
            while key not in session.tables:
                if session.over or session.stopped or key in session.given_up:
                    session.given_up.discard(key)
                    return None
                left_s = patience()
                if left_s is not None and left_s <= 0:
                    session.taken.add(key)
                    return None
                self._changed.wait(left_s)
            self._changed.notify_all()  # there is room now
            return session.tables.pop(key)

    def _stop(self, session: _Session) -> None:
        """Does not wait: a change of generation never waits for Ray Data."""
        with self._changed:
            session.stopped = True
            session.tables.clear()
            self._changed.notify_all()
        if not session.over:
            Background(lambda: self._stop_runs(session), "god_ray-ray-stop", when_done=lambda _: None)

    def _stop_runs(self, session: _Session) -> None:
        for run in session.runs:
            # An execution that is just starting cannot be stopped yet: ask until it has ended.
            while run.thread is None or not run.thread.join(timeout_s=0.2):
                execution = run.execution
                if execution is not None:
                    execution.stop()

    # The threads that take tables, one per execution, at most two at a time

    def _launch(self, session: _Session, before: _Run | None) -> None:
        run = _Run(before)
        with self._changed:
            if session.stopped or session.failures >= MAX_FAILURES:
                return
            session.runs = [*(old for old in session.runs if not old.ended), run]
            self._alive = [*(old for old in self._alive if not old.ended), run]
        run.thread = Background(
            lambda: self._take(session, run), "god_ray-ray", lambda error: self._ended(session, run, error)
        )

    def _take(self, session: _Session, run: _Run) -> None:
        size = FIRST_TASKS if run.before is None else MAX_TASKS
        wanted = (task for task in session.tasks if task.key not in session.taken)
        run.tasks = list(islice(wanted, size))
        if not run.tasks:
            return
        run.outstanding = {task.key: task for task in run.tasks}
        run.execution = self._begin(run.tasks)
        self._counters["executions"] += 1
        with closing(run.execution.tables()) as tables:
            for index, table in tables:
                task = run.tasks[index]
                verify(table, task)
                self._deposit(session, run, task, table)
                if session.stopped or run.late >= MAX_LATE:
                    return
                if len(run.outstanding) <= OVERLAP and not run.has_next:
                    run.has_next = True
                    self._launch(session, run)

    def _deposit(self, session: _Session, run: _Run, task: Task, table: pa.Table) -> None:
        with self._changed:
            self._changed.wait_for(lambda: session.stopped or self._may_deposit(session, run, task, table))
            del run.outstanding[task.key]
            if session.stopped:
                return
            if task.key in session.taken:
                session.taken.discard(task.key)
                self._counters["dropped"] += 1
                run.late += 1
                return
            run.late = 0
            session.tables[task.key] = table
            self._changed.notify_all()

    def _may_deposit(self, session: _Session, run: _Run, task: Task, table: pa.Table) -> bool:
        if run.before is not None and not run.before.ended:
            return False  # else later tables fill the room that earlier ones need
        if task.key in session.taken or not session.tables:
            return True
        waiting_bytes = sum(waiting.nbytes for waiting in session.tables.values())
        return len(session.tables) < self._max_tables and waiting_bytes + table.nbytes <= self._memory_bytes

    def _ended(self, session: _Session, run: _Run, error: BaseException | None) -> None:
        remaining = [task for key, task in run.outstanding.items() if key not in session.taken]
        with self._changed:
            if error is not None and not session.stopped:
                session.failures += 1
                self._counters["failures"] += 1
            elif run.late >= MAX_LATE and not run.has_next:
                session.tasks = chain(remaining[LEAD:], session.tasks)
                remaining = remaining[:LEAD]
            session.given_up.update(task.key for task in remaining)
            session.taken.difference_update(run.outstanding)
            run.before = run.execution = None
        if error is not None and not session.stopped:
            logger.warning(
                "Ray Data did not bring %d reads; the worker does: %s", len(remaining), _brief(error)
            )
        if run.tasks and not run.has_next:
            self._launch(session, run)
        with self._changed:
            run.ended = True
            self._changed.notify_all()


def _brief(error: BaseException) -> str:
    """The first line of what went wrong, where Ray wraps it in a traceback: of its cause."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"
