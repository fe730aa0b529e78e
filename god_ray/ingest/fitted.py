"""What was fitted on the training set, and applying it: numbers to scale, codes of values, numbers of words.

In: `fitted`, a statistic by column, and Arrow tables. Out: tables in which these columns are replaced; strict
JSON and back. Must not know how statistics are found (`fit.py`). A value that has no code, a null or a column
of another type shows as a DataError that names file, column and value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from god_ray.errors import DataError
from god_ray.ingest.columns import HIDDEN, describe
from god_ray.ingest.sources.copies import origin

FORMAT = 1
_KINDS = {str: "texts", int: "whole numbers", bool: "truth values"}


@dataclass(frozen=True)
class Scale:
    """(x - mean) / std as float32; 0 everywhere if all training values were equal."""

    kind: ClassVar[str] = "scale"
    mean: float
    std: float
    """Of the training set as a whole: the root of the mean squared distance."""

    def apply(self, column: pa.ChunkedArray) -> pa.Array:
        values = np.asarray(column.to_numpy(), dtype=np.float64)
        if self.std == 0:
            return pa.array(np.zeros(len(values), dtype=np.float32))
        return pa.array(((values - self.mean) / self.std).astype(np.float32))


@dataclass(frozen=True)
class Categories:
    """The place of a value in `values`, which are sorted, as int64."""

    kind: ClassVar[str] = "categories"
    values: tuple[Any, ...]
    """Texts, whole numbers or truth values."""

    @property
    def size(self) -> int:
        return len(self.values)

    @cached_property
    def _codes(self) -> dict[Any, int]:
        return {value: code for code, value in enumerate(self.values)}

    def apply(self, column: pa.ChunkedArray) -> pa.Array:
        """Raises ValueError with the first value that has no code, TypeError for values of another kind."""
        if (kind := _KINDS[type(self.values[0])]) != _kind(column.type):
            raise TypeError(kind)
        coded = column.combine_chunks().dictionary_encode()
        there = coded.dictionary.to_pylist()
        unknown = [value for value in there if value not in self._codes]
        if unknown:
            raise ValueError(unknown[0])
        return pa.array([self._codes[value] for value in there], pa.int64()).take(coded.indices)


@dataclass(frozen=True)
class Vocabulary:
    """Words, lower-cased and split at blanks, as a list of int32; 0 is for padding, 1 is any other word."""

    kind: ClassVar[str] = "vocabulary"
    values: tuple[str, ...]
    """The most frequent first; the first has number 2."""
    PADDING: ClassVar[int] = 0
    UNKNOWN: ClassVar[int] = 1

    @property
    def size(self) -> int:
        """Of an embedding: the words, padding and the unknown word."""
        return len(self.values) + 2

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.values, start=2)}

    def apply(self, column: pa.ChunkedArray) -> pa.Array:
        rows = [[self._numbers.get(word, 1) for word in words(text)] for text in column.to_pylist()]
        return pa.array(rows, pa.list_(pa.int32()))


Statistic = Scale | Categories | Vocabulary
Fitted = Mapping[str, Statistic]


def words(text: str) -> list[str]:
    return text.lower().split()


def column_to_fit(table: pa.Table, name: str, kind: str, where: str) -> pa.ChunkedArray:
    """A column that can be fitted or replaced. Raises DataError."""
    fix = "correct data.fit, or make the column in data.preprocess"
    if name not in table.column_names:
        names = ", ".join(found for found in table.column_names if found not in HIDDEN)
        raise refused(where, f"data.fit names column {name}, which is not there", f"There are {names}.", fix)
    column = _simple(table.column(name))
    rule, fits = _ACCEPTED[kind]
    if not fits(column.type):
        what = f"column {name} ({describe(table.schema.field(name))}) has no {kind}"
        raise refused(where, what, f"Wanted are {rule}.", fix, name)
    if column.null_count:
        what = f"column {name} holds {column.null_count} nulls, and data.fit makes {kind} of it"
        raise refused(where, what, "", "fill them in data.preprocess", name)
    return column


def _whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


_ACCEPTED: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "scale": ("numbers", lambda kind: bool(pa.types.is_floating(kind)) or _whole(kind)),
    "categories": (
        "texts, whole numbers or truth values",
        lambda kind: bool(kind == pa.string()) or _whole(kind),
    ),
    "vocabulary": ("texts", lambda kind: bool(kind == pa.string())),
}


def _simple(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Codes as their values; texts and whole numbers of one size, so that files may differ in that."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    if pa.types.is_integer(column.type) and column.type != pa.uint64():
        return column.cast(pa.int64())
    return column


def apply_fitted(fitted: Fitted, table: pa.Table, where: str) -> pa.Table:
    """The table with the fitted columns replaced. `where`: the file, for errors."""
    for name, statistic in fitted.items():
        column = column_to_fit(table, name, statistic.kind, where)
        try:
            new = statistic.apply(column)
        except TypeError as error:
            raise refused(
                where,
                f"column {name} is {column.type}, and its categories are {error}",
                "They were taken from the training set.",
                "give both sets one type",
                name,
            ) from None
        except ValueError as error:
            raise refused(
                where,
                f"column {name} holds {error.args[0]!r}, which no row of the training set has",
                "Each category that the training set has got a number when the run was made.",
                "replace it in data.preprocess, or start a new run on rows that have it",
                name,
            ) from None
        table = table.set_column(table.column_names.index(name), name, new)
    return table


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return _KINDS[bool]
    return _KINDS[int] if pa.types.is_integer(kind) else _KINDS[str]


def refused(where: str, what: str, why: str, fix: str, column: str = "") -> DataError:
    file = origin(where)
    return DataError(f"{file}: {what}.", why, fix, file=file, column=column)


def to_json(fitted: Fitted) -> str:
    columns = {name: {"kind": found.kind, **_plain(found)} for name, found in fitted.items()}
    return json.dumps({"format": FORMAT, "columns": columns}, ensure_ascii=False, allow_nan=False, indent=1)


def _plain(statistic: Statistic) -> dict[str, Any]:
    if isinstance(statistic, Scale):
        return {"mean": statistic.mean, "std": statistic.std}
    return {"values": list(statistic.values)}


def from_json(text: str) -> dict[str, Statistic]:
    """Raises ValueError if that is not what `to_json` wrote."""
    said = json.loads(text)
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    return {name: _statistic(told) for name, told in said["columns"].items()}


def _statistic(told: dict[str, Any]) -> Statistic:
    if told["kind"] == Scale.kind:
        return Scale(float(told["mean"]), float(told["std"]))
    if told["kind"] == Categories.kind:
        return Categories(tuple(told["values"]))
    if told["kind"] == Vocabulary.kind:
        return Vocabulary(tuple(told["values"]))
    raise ValueError(f"{told['kind']!r} is no statistic")
