"""One pass over a whole data set before training: to fit statistics, or to keep what becomes of its rows.

In: a source, what is done to its rows, whether Ray is there. Out: `Fitted`, or a source over the kept rows.
Done on the cluster's CPUs through Ray Data, or here; what comes out is the same. If Ray Data fails for
reasons of its own, the rest is done here.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from god_ray.errors import Bug, GodRayError
from god_ray.ingest.columns import HIDDEN
from god_ray.ingest.fit import Wanted, join, summary
from god_ray.ingest.fitted import Fitted
from god_ray.ingest.parquet import ParquetSource, Reader
from god_ray.ingest.sources import copies
from god_ray.ingest.tasks import Preprocess, SameColumns, Task, read_applied, verify
from god_ray.plan import Manifest
from god_ray.saying import Say, Ticker

TASK_BYTES = 32 << 20
TASK_FRAGMENTS = 64
logger = logging.getLogger("god_ray.ingest")
Work = Callable[[int, Task], pa.Table]


def fit(
    sources: Sequence[ParquetSource], wanted: Wanted, preprocess: Preprocess | None, on_ray: bool, say: Say
) -> Fitted:
    """Statistics of all rows of the sources, as `preprocess` makes them."""

    def summaries() -> Iterator[str]:
        for source in sources:
            work = partial(_summaries, source.reader, preprocess, wanted)
            for table in _done(source, work, on_ray, say, f"fitting {', '.join(wanted)}"):
                yield from table["summary"].to_pylist()

    return join(summaries(), wanted)


def _summaries(
    reader: Reader, preprocess: Preprocess | None, wanted: Wanted, index: int, task: Task
) -> pa.Table:
    tables = read_applied(reader, task, preprocess)
    pieces = zip(tables, task.pieces, strict=True)
    return pa.table({"summary": [summary(table, wanted, piece.path) for table, piece in pieces]})


def go_through(source: ParquetSource, preprocess: Preprocess, on_ray: bool, say: Say) -> None:
    """For what `preprocess` may raise."""
    for _ in _done(source, partial(_count, source.reader, preprocess), on_ray, say, "looking at data.eval"):
        pass


def _count(reader: Reader, preprocess: Preprocess, index: int, task: Task) -> pa.Table:
    return pa.table({"rows": [table.num_rows for table in read_applied(reader, task, preprocess)]})


def cached(
    source: ParquetSource, preprocess: Preprocess, made_by: str, storage: str, on_ray: bool, say: Say
) -> ParquetSource:
    """What `preprocess` makes of the rows, from a copy; made if it is not there.

    made_by: tells this preprocess from others. The source's fragments, numbers of rows and fingerprint stay,
    so the order of training is what it would be without the copy.
    """
    store = copies.open_copies(storage)
    rows = hashlib.blake2b(source.manifest.rows.tobytes(), digest_size=16).hexdigest()
    key = copies.key_of(
        {
            "source": source.manifest.fingerprint,
            "rows": rows,
            "columns": source.schema.names,
            "made_by": made_by,
        }
    )
    copy = copies.find(store, key)
    if copy is None:
        work = partial(_write_part, source.reader, preprocess, storage, key)
        tables = _done(source, work, on_ray, say, "writing data.cache")
        copy = copies.seal(store, key, [name for table in tables for name in table["part"].to_pylist()], [])
    kept = ParquetSource.open(copy.paths, allow_any=True)
    if kept.manifest.rows.tolist() != source.manifest.rows.tolist():
        raise Bug(f"the copy {key} has other fragments than the data that it was made from.")
    manifest: Manifest = replace(kept.manifest, fingerprint=source.manifest.fingerprint)
    return replace(kept, manifest=manifest)


def _write_part(
    reader: Reader, preprocess: Preprocess, storage: str, key: str, index: int, task: Task
) -> pa.Table:
    """One part of a task's fragments, each a row group."""
    tables = read_applied(reader, task, preprocess)
    verify(pa.concat_tables([table.select([HIDDEN[0]]) for table in tables]), task)
    visible = [
        table.drop_columns([name for name in HIDDEN if name in table.column_names]) for table in tables
    ]
    same_columns = SameColumns()
    for table in visible:
        same_columns(table)
    name = copies.part_name(index)
    store = copies.open_copies(storage)
    store.write(f"{key}/{name}", lambda path: copies.write_groups(visible, path))
    return pa.table({"part": [name]})


def _done(source: ParquetSource, work: Work, on_ray: bool, say: Say, doing: str) -> Iterator[pa.Table]:
    """`work` of all tasks, in order."""
    tasks, done = _tasks(source), 0
    ticker = Ticker(doing, source.manifest.num_rows, say, "rows", 1)
    rows = iter(task.rows for task in tasks)
    seen = 0
    if on_ray:
        from god_ray.ingest import raydata

        try:
            for table in raydata.each(tasks, source.row_bytes, work):
                yield table
                done, seen = done + 1, seen + next(rows)
                ticker.tick(seen)
        except GodRayError:
            raise
        except raydata.Failed as error:
            logger.warning(
                "Ray Data gave up %s; the rest is done here: %s", doing, str(error).splitlines()[0]
            )
    for index in range(done, len(tasks)):
        yield work(index, tasks[index])
        seen += next(rows)
        ticker.tick(seen)


def _tasks(source: ParquetSource) -> list[Task]:
    """Neighbouring fragments, as many as are worth a task."""
    tasks: list[Task] = []
    held: list[int] = []
    rows = 0
    limit = max(TASK_BYTES // source.row_bytes, 1)
    for fragment, size in enumerate(source.manifest.rows.tolist()):
        if held and (rows + size > limit or len(held) == TASK_FRAGMENTS):
            tasks.append(_task(source, held, len(tasks)))
            held, rows = [], 0
        held.append(fragment)
        rows += size
    return [*tasks, _task(source, held, len(tasks))] if held else tasks


def _task(source: ParquetSource, fragments: list[int], number: int) -> Task:
    sizes = source.manifest.rows
    return Task(number, tuple(source.piece(fragment, 0, int(sizes[fragment])) for fragment in fragments))
