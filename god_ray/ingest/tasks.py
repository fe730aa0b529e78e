"""What is read at one go, and what is done to it before it is held: the same code here and in Ray's tasks.

In: pieces of files and the user's `preprocess`. Out: one Arrow table per `Task`, its rows in reading order
with their numbers. Must not know lanes, epochs or Ray. A preprocess that fails or changes the rows shows as a
`RecipeError` that names the user's line; rows that are not the task's, as `RowsMismatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from god_ray.errors import RecipeError, RowsMismatch
from god_ray.ingest.columns import HIDDEN, ROW, describe, hidden_column
from god_ray.ingest.fitted import Fitted, apply_fitted
from god_ray.ingest.kinds import as_read
from god_ray.ingest.parquet import Piece, Reader
from god_ray.ingest.userfunction import function_name, source_file

Preprocess = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Fitting:
    """A `Preprocess`: the user's, if there is one, then what was fitted on the training set."""

    before: Preprocess | None
    fitted: Fitted

    def __call__(self, table: pa.Table) -> pa.Table:
        return apply(self, table)


@dataclass(frozen=True)
class Task:
    """Pieces that are read together, in this order."""

    key: Hashable
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


def read_task(reader: Reader, task: Task, preprocess: Preprocess | None) -> pa.Table:
    """The task's rows in reading order: visible columns after preprocess, and ROW."""
    return join(read_applied(reader, task, preprocess))


def read_applied(reader: Reader, task: Task, preprocess: Preprocess | None) -> list[pa.Table]:
    """Each piece's table after preprocess."""
    tables = read_pieces(reader, task.pieces)
    if preprocess is None:
        return tables
    paths = [piece.path for piece in task.pieces]
    return [apply(preprocess, table, path) for table, path in zip(tables, paths, strict=True)]


def read_pieces(reader: Reader, pieces: Sequence[Piece]) -> list[pa.Table]:
    """Each piece's table. Read in the order of the files, so that neighbours share one pass."""
    tables: list[pa.Table | None] = [None] * len(pieces)
    for i in sorted(range(len(pieces)), key=lambda i: (pieces[i].path, pieces[i].group, pieces[i].lo)):
        tables[i] = reader.read(pieces[i])
    return [table for table in tables if table is not None]


def apply(preprocess: Preprocess, table: pa.Table, where: str = "the data") -> pa.Table:
    """Call the user's function on the visible columns of one piece and put the hidden ones back.

    It always sees whole pieces (a fragment, or what one lane uses of it), wherever it runs, so that even a
    function that looks at other rows gives one result. It must keep the number and the order of rows.
    `where`: the file, for errors.
    """
    if isinstance(preprocess, Fitting):
        if preprocess.before is not None:
            table = apply(preprocess.before, table, where)
        return apply_fitted(preprocess.fitted, table, where)
    hidden = _hidden(table)
    visible = table.drop_columns(hidden)
    name = function_name(preprocess)
    file = source_file(preprocess)
    with file.blame(f"data.preprocess, {name}(table)"):
        result = preprocess(visible)
    _check_result(result, visible, f"{file.where(preprocess)}: {name}(table)")
    for at, field in enumerate(result.schema):  # codes and 32-bit offsets hold for this piece only
        if (kind := as_read(field.type)) != field.type:
            result = result.set_column(at, field.with_type(kind), result.column(at).cast(kind))
    for column in hidden:
        result = result.append_column(column, table.column(column))
    return result


def require_order(preprocess: Preprocess | None, table: pa.Table) -> None:
    """Raises RecipeError for a function that brings the rows of `table` into another order.

    Half by half it could not: the same rows in another order than from the whole give it away. One that looks
    at other rows has other values, and passes.
    """
    function = preprocess.before if isinstance(preprocess, Fitting) else preprocess
    if function is None or table.num_rows < 2:
        return
    middle = table.num_rows // 2
    whole = apply(function, table)
    halves = join([apply(function, table.slice(0, middle)), apply(function, table.slice(middle))])
    rows, other = ([repr(row) for row in t.drop_columns(_hidden(t)).to_pylist()] for t in (whole, halves))
    if rows != other and sorted(rows) == sorted(other):
        name, file = function_name(function), source_file(function)
        raise RecipeError(
            f"{file.where(function)}: {name}(table) returns the rows in another order",
            "The order of rows is the data set's; the training order is drawn from the seed.",
            "return one row per row given, in the same order",
        )


def _hidden(table: pa.Table) -> list[str]:
    return [name for name in HIDDEN if name in table.column_names]


def join(tables: Sequence[pa.Table]) -> pa.Table:
    """One table; raises RecipeError if a preprocess gave its pieces different columns."""
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        raise _drift(str(error)) from error


def verify(table: pa.Table, task: Task) -> None:
    """The rows must be exactly the task's, in reading order."""
    expected = np.concatenate(
        [np.arange(p.first_row, p.first_row + p.rows, dtype=np.int64) for p in task.pieces]
    )
    found = hidden_column(table, ROW)
    if not np.array_equal(found, expected):
        raise RowsMismatch(
            f"read task {task.key}: {len(found)} rows arrived that are not the {len(expected)} planned",
            f"The first planned rows are {expected[:3].tolist()}, the first that came {found[:3].tolist()}.",
            "report this; data.reader: direct goes around Ray Data",
        )


class SameColumns:
    """Refuses a table whose columns are not those of the first one seen."""

    def __init__(self) -> None:
        self._first: dict[str, str] | None = None

    def __call__(self, table: pa.Table) -> None:
        columns = {field.name: describe(field) for field in table.schema}
        if self._first is None:
            self._first = columns
        elif columns != self._first:
            raise _drift(f"{columns} here, {self._first} before.")


def _drift(why: str) -> RecipeError:
    return RecipeError(
        "data.preprocess returns different columns for different rows",
        why,
        "give every column a fixed name and type, for example with table.cast(schema)",
    )


def _check_result(result: object, given: pa.Table, subject: str) -> None:
    fix = "return a pyarrow.Table with one row per row given, in the same order"
    if not isinstance(result, pa.Table):
        what = f"{subject} returned a {type(result).__name__}"
        raise RecipeError(what, "It must return a pyarrow.Table.", fix)
    if result.num_rows != given.num_rows:
        raise RecipeError(
            f"{subject} returned {result.num_rows} rows for {given.num_rows}",
            "Each row of the data set is trained on exactly once, so a preprocess may not add or drop any.",
            fix + "; filter when the data set is written",
        )
    names = result.column_names
    wrong = sorted({name for name in names if name in HIDDEN or names.count(name) > 1})
    if wrong or not names:
        why = f"Reserved or repeated: {', '.join(wrong)}." if wrong else "It has no columns."
        raise RecipeError(f"{subject} returned a table that cannot be used", why, "give columns other names")
