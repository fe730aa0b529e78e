"""Ray Data as the carrier: one Ray Dataset per bunch of read tasks, in order, one block per task.

In: tasks. Out: their tables, through `AheadCarrier`. The only module of this room that imports Ray; written
against Ray 2.60, of which it uses one internal: the streaming executor's `shutdown`, to stop an execution
that is still waiting for its first block. Must not know lanes or batches. A block that is not its task's
raises `RowsMismatch`, and the worker reads instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.exceptions import RayError

from god_ray.errors import GodRayError, RowsMismatch
from god_ray.ingest.ahead import AheadCarrier
from god_ray.ingest.carrier import Counters, DirectCarrier
from god_ray.ingest.columns import POSITION, hidden_column
from god_ray.ingest.parquet import ParquetSource, Reader
from god_ray.ingest.tasks import Preprocess, Task, apply, join, read_pieces
from god_ray.userfile import register_by_value

_building = threading.Lock()
"""Ray's DataContext is one per process while a Dataset is built."""


Work = Callable[[int, Task], pa.Table]
"""Reads a task and makes one small table of it."""
Failed = RayError
"""What Ray raises for reasons of its own."""
STORE_SHARE = 0.5
"""Of the object store, for what Ray holds ready for all workers together: each would take so much alone."""
REST_S = 1.0
"""The longest time between two rounds of Ray's scheduling loop."""


class RayCarrier(AheadCarrier):
    """A `Carrier` whose tasks Ray Data reads and preprocesses on the cluster's CPUs."""

    def __init__(
        self,
        source: ParquetSource,
        preprocess: Preprocess | None,
        direct: DirectCarrier,
        counters: Counters,
        changed: threading.Condition,
        memory_bytes: int,
        most_workers: int,
    ) -> None:
        """most_workers: so many may share Ray's object store with this one."""
        if not ray.is_initialized():
            raise ValueError('reader="ray" needs an initialised Ray; use reader="direct" without one')
        register_by_value()
        _keep_console_quiet()
        share = STORE_SHARE * ray.cluster_resources().get("object_store_memory", float("inf")) / most_workers
        begin = partial(RayExecution, source.reader, source.row_bytes, preprocess, share)
        super().__init__(begin, direct, counters, changed, memory_bytes)


class RayExecution:
    """One Ray Dataset over a bunch of tasks."""

    def __init__(
        self,
        reader: Reader,
        row_bytes: int,
        preprocess: Preprocess | None,
        store_bytes: float,
        tasks: Sequence[Task],
    ) -> None:
        """store_bytes: of Ray's object store, for what it brings; Ray waits when that is used up."""
        self._num_tasks = len(tasks)
        self._executor: Any = None
        self._wanted = threading.Event()
        self._dataset = _dataset(
            _TaskSource(row_bytes, tasks, partial(_read, reader)), preprocess, store_bytes
        )

    def tables(self) -> Generator[tuple[int, pa.Table], None, None]:
        blocks = self._dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
        with closing(iter(blocks)) as opened, _Announcing(self):
            while True:
                self._wanted.set()
                block = next(opened, None)
                self._wanted.clear()
                if block is None:
                    return
                if block.num_rows:
                    yield _task_index(block, self._num_tasks), block.drop_columns([POSITION])

    def began(self, executor: Any) -> None:
        self._executor = executor

    def rest(self) -> None:
        """Hold Ray's scheduling loop, which comes by after each round, until a block is wanted.

        Left alone it spins while its output is not taken: 0.4 cores of the trainer's process, and the GIL.
        """
        self._wanted.wait(REST_S)

    def stop(self) -> None:
        self._wanted.set()
        if self._executor is not None:
            self._executor.shutdown(force=True)


class _Announcing:
    """While open, tells the execution about the executor that Ray starts in this thread."""

    here = threading.local()

    def __init__(self, execution: RayExecution) -> None:
        self._execution = execution

    def __enter__(self) -> None:
        self.here.execution = self._execution

    def __exit__(self, *_: object) -> None:
        self.here.execution = None


class ExecutorCallback:
    """Ray makes one per executor. It is the only way to an executor that has no first block yet."""

    def __init__(self) -> None:
        self._execution: RayExecution | None = None

    def before_execution_starts(self, executor: Any) -> None:
        """In the thread that iterates."""
        self._execution = getattr(_Announcing.here, "execution", None)
        if self._execution is not None:
            self._execution.began(executor)

    def on_execution_step(self, executor: Any) -> None:
        """In the thread of Ray's scheduling loop."""
        if self._execution is not None:
            self._execution.rest()

    def after_execution_succeeds(self, executor: Any) -> None:
        pass

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        pass


def each(tasks: Sequence[Task], row_bytes: int, work: Work) -> Iterator[pa.Table]:
    """What `work(index, task)` makes, in order, made on the cluster's CPUs. Raises what it raised there."""
    register_by_value()
    _keep_console_quiet()
    dataset = _dataset(_TaskSource(row_bytes, tasks, partial(_as_block, work)), None)
    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
    except RayError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, GodRayError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        raise cause or error from error


class _TaskSource(Datasource):  # type: ignore[misc]
    """One Ray read task per task."""

    def __init__(
        self, row_bytes: int, tasks: Sequence[Task], read: Callable[[int, Task], list[pa.Table]]
    ) -> None:
        super().__init__()
        self._row_bytes, self._tasks, self._read = row_bytes, tasks, read

    def get_name(self) -> str:
        return "GodRay"

    def estimate_inmemory_data_size(self) -> int:
        return sum(task.rows for task in self._tasks) * self._row_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        return [self._read_task(index, task) for index, task in enumerate(self._tasks)]

    def _read_task(self, index: int, task: Task) -> ReadTask:
        size = BlockMetadata(task.rows, task.rows * self._row_bytes, None, None)
        return ReadTask(partial(self._read, index, task), size)


def _dataset(source: _TaskSource, preprocess: Preprocess | None, store_bytes: float | None = None) -> Any:
    with _building:
        context = ray.data.DataContext.get_current().copy()
        context.execution_options.preserve_order = True
        limits = ray.data.ExecutionResources.for_limits(object_store_memory=store_bytes)
        context.execution_options.resource_limits = limits
        context.target_max_block_size = None  # one block per task
        context.execution_no_progress_timeout_s = -1  # a trainer may use one window for hours
        context.raise_original_map_exception = True  # the user's error, not a wrapper's text
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        context.enable_auto_log_stats = False
        context.custom_execution_callback_classes = [
            *context.custom_execution_callback_classes,
            ExecutorCallback,
        ]
        with ray.data.DataContext.current(context):
            count = len(source.get_read_tasks(-1))
            dataset = ray.data.read_datasource(source, override_num_blocks=count)
            if preprocess is not None:
                dataset = dataset.map_batches(
                    partial(_preprocess, preprocess),
                    batch_size=None,
                    batch_format="pyarrow",
                    zero_copy_batch=True,
                    udf_modifying_row_count=False,
                )
            return dataset


# In Ray's tasks


def _read(reader: Reader, index: int, task: Task) -> list[pa.Table]:
    """The task's rows and their positions: index of the task in the upper half, of the piece in the lower."""
    tables = read_pieces(reader, task.pieces)
    for nth, table in enumerate(tables):
        position = np.full(table.num_rows, (index << 32) + nth, dtype=np.int64)
        tables[nth] = table.append_column(POSITION, pa.array(position))
    return [pa.concat_tables(tables)]


def _as_block(work: Work, index: int, task: Task) -> list[pa.Table]:
    return [work(index, task)]


def _preprocess(preprocess: Preprocess, block: pa.Table) -> pa.Table:
    """Piece by piece, as the worker does it."""
    position = hidden_column(block, POSITION)
    edges = [0, *(np.flatnonzero(np.diff(position)) + 1).tolist(), block.num_rows]
    pieces = [block.slice(lo, hi - lo) for lo, hi in pairwise(edges)]
    return join([apply(preprocess, piece) for piece in pieces])


# In the worker


def _task_index(block: pa.Table, num_tasks: int) -> int:
    indices = hidden_column(block, POSITION) >> 32
    index = int(indices[0])
    if not (0 <= index < num_tasks and (indices == index).all()):
        raise RowsMismatch(
            f"a block of Ray Data mixes rows of several reads ({np.unique(indices)[:5].tolist()})",
            "One block per read task was asked for.",
        )
    return index


def _keep_console_quiet() -> None:
    """Ray Data announces executions, waits and failures that are gone around; its log file still has them.

    Only Ray's own console handler: the root logger's handlers hang on this logger too.
    """
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("ray."):
            handler.setLevel(logging.CRITICAL)
