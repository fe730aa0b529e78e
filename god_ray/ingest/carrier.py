"""Who brings the rows of a task: the worker itself here, Ray Data in `raydata.py`.

In: tasks in the order of first need. Out: their tables. Must not know lanes, epochs or batches: order is the
plan's, so whoever reads, the rows are the same. A failure to read is raised by `get`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from god_ray.ingest.parquet import Reader
from god_ray.ingest.tasks import Preprocess, Task, read_task, verify

Patience = Callable[[], float | None]
"""Seconds that may still be waited for Ray to bring a task; None: until notified. Raises Abandoned."""


class Abandoned(Exception):
    """The one who asked no longer wants the task."""


Counters = dict[str, Any]


def new_counters() -> Counters:
    """What a feed did so far. A "window" is one read task: in whole-set mode a group of fragments."""
    return {
        "executions": 0,
        "windows_by_ray": 0,
        "rows_by_ray": 0,
        "windows_by_worker": 0,
        "rows_by_worker": 0,
        "dropped": 0,
        "failures": 0,
        "random_reads": 0,
        "waits": 0,
        "waited_s": 0.0,
    }


class Carrier(Protocol):
    def start(self, tasks: Iterator[Task]) -> None:
        """Forget what was asked before; these tasks will be wanted, in this order. Returns at once."""
        ...

    def get(self, task: Task, patience: Patience) -> pa.Table:
        """The task's rows in reading order, preprocessed and checked. Blocks."""
        ...

    def close(self) -> None: ...


class DirectCarrier:
    """The worker reads each task when asked; the feed's loader thread is what reads ahead."""

    def __init__(self, reader: Reader, preprocess: Preprocess | None, counters: Counters) -> None:
        self._reader, self._preprocess, self._counters = reader, preprocess, counters

    def start(self, tasks: Iterator[Task]) -> None:
        pass

    def get(self, task: Task, patience: Patience) -> pa.Table:
        table = self.read(task)
        self._counters["windows_by_worker"] += 1
        self._counters["rows_by_worker"] += task.rows
        return table

    def read(self, task: Task) -> pa.Table:
        """Without counting: random access."""
        table = read_task(self._reader, task, self._preprocess)
        verify(table, task)
        return table

    def close(self) -> None:
        pass
