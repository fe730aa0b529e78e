"""Whole-set mode: the decoded set is held in memory once per process, for all epochs.

In: a supply. Out: leaves, each a gather of the plan's row numbers. Must not know who carries the rows. A
failure while loading is raised by `leaf`.
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pyarrow as pa

from god_ray.ingest.background import Background
from god_ray.ingest.carrier import Abandoned
from god_ray.ingest.columns import ROW, hidden_column
from god_ray.ingest.held import Collate, Held, HeldTable, HeldTensors, Leaf
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.supply import Supply
from god_ray.ingest.tasks import SameColumns, Task, join
from god_ray.ingest.tensors import Array, array_columns
from god_ray.plan import Cursor, DataPlan

MAX_TASKS = 64
TASK_BYTES = 8 << 20


class MemoryFeed:
    """A `Feed` over a set that fits into memory."""

    def __init__(self, supply: Supply, patience_s: float) -> None:
        self.counters = supply.counters
        self._supply, self._patience_s = supply, patience_s
        self._epoch = -1
        self._waiting_since: float | None = None
        self._last_arrival = 0.0
        self._tasks: list[Task] = []
        self._held: Held | None = None
        self._loading: Background | None = None
        self._closed = False
        self._same_columns = SameColumns()

    def start(self, cursor: Cursor, lanes: range) -> None:
        """Begin loading; once is enough, whatever the position and the lanes."""
        self._begin()

    def leaf(self, cursor: Cursor, lane: int) -> Leaf | None:
        if cursor.epoch != self._epoch:
            self._turn_to(cursor.epoch)
        rows = self._supply.plan.epoch(cursor.epoch).row_numbers(lane, cursor.step_in_epoch)
        if not len(rows):
            return None
        return (self._held or self._wait()).gather(rows)

    def close(self) -> None:
        self._closed = True
        self._notify()
        if self._loading is not None:
            self._loading.join(timeout_s=10)
        self._supply.carrier.close()
        self._held = None

    def _turn_to(self, epoch: int) -> None:
        """Have the next epoch's order made while this one is trained: 0.1 s per million rows."""
        self._epoch = epoch
        following, num_steps = epoch + 1, self._supply.num_steps
        if num_steps is None or following * self._supply.plan.steps_per_epoch < num_steps:
            Background(lambda: self._prepare_order(following), "god_ray-order", lambda _: None)

    def _prepare_order(self, epoch: int) -> None:
        _ = self._supply.plan.epoch(epoch).permutation

    def _begin(self) -> Background:
        if self._loading is None:
            self._tasks = tasks(self._supply.source)
            self._supply.carrier.start(iter(self._tasks[1:]))  # the first is read before Ray could bring it
            self._loading = Background(self._load, "god_ray-load", lambda _: self._notify())
        return self._loading

    def _wait(self) -> Held:
        loading = self._begin()  # a leaf may be asked for before any start
        begin = time.monotonic()
        with self._supply.changed:
            self._waiting_since = begin
            self._supply.changed.notify_all()
        loading.result()
        self.counters["waits"] += 1
        self.counters["waited_s"] += time.monotonic() - begin
        if self._held is None:
            raise ValueError("leaf() after close()")
        return self._held

    def _patience(self) -> float | None:
        """Nobody waits: let Ray take its time. Somebody does: as long as something keeps arriving."""
        if self._closed:
            raise Abandoned
        if self._waiting_since is None:
            return None
        idle_s = time.monotonic() - max(self._waiting_since, self._last_arrival)
        return max(0.0, self._patience_s - idle_s)

    def _load(self) -> None:
        num_rows, collate = self._supply.plan.manifest.num_rows, self._supply.collate
        filled = _Tensors(num_rows) if collate is None else _Tables(collate)
        brought = 0
        for task in self._tasks:
            if self._closed:
                return
            carrier = self._supply.carrier if task.key else self._supply.direct
            try:
                table = carrier.get(task, self._patience)
            except Abandoned:
                return
            if self.counters["windows_by_ray"] > brought:  # what the worker reads itself is no sign of life
                brought, self._last_arrival = self.counters["windows_by_ray"], time.monotonic()
            self._same_columns(table)
            filled.add(table)
        self._held = filled.finish()
        self._supply.carrier.start(iter(()))  # what Ray may still be doing is not needed

    def _notify(self) -> None:
        with self._supply.changed:
            self._supply.changed.notify_all()


def tasks(source: ParquetSource) -> list[Task]:
    """The whole set in manifest order: at most MAX_TASKS groups of fragments of about TASK_BYTES each."""
    rows = source.manifest.rows
    return [
        Task(index, tuple(source.piece(f, 0, int(rows[f])) for f in range(first, end)))
        for index, (first, end) in enumerate(pairwise(_bounds(source)))
    ]


def _bounds(source: ParquetSource) -> list[int]:
    """Where each task's fragments begin, and the end of the last one's."""
    manifest = source.manifest
    count = min(max(manifest.num_rows * source.row_bytes // TASK_BYTES, 1), MAX_TASKS, manifest.num_fragments)
    ends = np.searchsorted(manifest.start, np.linspace(0, manifest.num_rows, count + 1)[1:], side="left")
    return [0, *np.unique(ends).tolist()]


def read_at_once(source: ParquetSource, plan: DataPlan) -> bool:
    """A set of one read: the worker has it long before Ray Data has started."""
    return plan.shuffle == "full" and len(_bounds(source)) == 2


class _Tensors:
    """Arrays for the whole set, filled as tasks arrive: never two copies of the set."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows, self._at = num_rows, 0
        self._columns: dict[str, Array] = {}
        self._rows = np.empty(num_rows, dtype=np.int64)

    def add(self, table: pa.Table) -> None:
        arrays = array_columns(table)
        here = slice(self._at, self._at + table.num_rows)
        for name, array in arrays.items():
            if self._at == 0:
                self._columns[name] = np.empty((self._num_rows, *array.shape[1:]), array.dtype)
            self._columns[name][here] = array
        self._rows[here] = hidden_column(table, ROW)
        self._at += table.num_rows

    def finish(self) -> HeldTensors:
        return HeldTensors(self._columns, self._rows)


class _Tables:
    """The same for a recipe with a collate."""

    def __init__(self, collate: Collate) -> None:
        self._tables: list[pa.Table] = []
        self._collate = collate

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)

    def finish(self) -> HeldTable:
        return HeldTable(join(self._tables), self._collate)
