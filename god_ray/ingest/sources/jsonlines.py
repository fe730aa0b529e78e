"""JSON Lines: one object a line, as tables of typed columns.

In: files, the types that the spec gives. Out: the columns' types, told from every line, then the tables. JSON
says what is a number and what is text: columns that mix them are refused, whole numbers among decimals become
float64 where that is exact. A broken line shows as a DataError with file and line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from god_ray.errors import DataError
from god_ray.ingest.fault import Fault, refuse
from god_ray.ingest.listing import Found
from god_ray.ingest.sources.progress import bytes_of
from god_ray.saying import Say, Ticker

ROWS = 16_384
_ONE_A_LINE = "write one object a line"
_LARGEST_FLOAT32 = 3.4028234663852886e38


class Clash(Exception):
    """(path of names inside the row, the two kinds)."""


@dataclass
class JsonLines:
    """`types`: of columns, where given; the others are told from the values. `closed`: each must be there."""

    files: Sequence[Found]
    types: Mapping[str, pa.DataType]
    closed: bool
    say: Say

    def tables(self) -> Iterator[pa.Table]:
        """All rows; a key that a line lacks is null. Raises DataError."""
        schema = self._schema()
        for file in self.files:
            rows: list[tuple[int, dict[str, Any]]] = []
            for numbered in self._rows(file, "converting"):
                rows.append(numbered)
                if len(rows) == ROWS:
                    yield self._table(file, rows, schema)
                    rows = []
            if rows:
                yield self._table(file, rows, schema)

    def _schema(self) -> pa.Schema:
        kinds: dict[str, pa.DataType] = {}
        settled: set[tuple[str, type]] = set()  # another such value cannot change the column's type
        for file in self.files:
            for line, row in self._rows(file, "reading"):
                for name, value in row.items():
                    if (name, type(value)) in settled and (type(value) is not int or _fits(value)):
                        continue
                    known = self.types.get(name)
                    try:
                        kinds[name] = known or merge(kinds.get(name, pa.null()), kind_of(value))
                    except Clash as clash:
                        raise refuse([_mixed(file, line, name, str(clash))]) from None
                    except RecursionError:
                        raise _broken(file, line, "its lists are nested too deep", _ONE_A_LINE) from None
                    if known or not isinstance(value, list | dict):
                        settled.add((name, type(value)))
        missing = [name for name in self.types if self.closed and name not in kinds]
        if missing:
            fix = f"the columns are {', '.join(kinds)}"
            rule = "data.types names it, and there is no such column"
            raise refuse([Fault(self.files[0].path, name, "", rule, fix) for name in missing])
        return pa.schema(list(kinds.items()))

    def _rows(self, file: Found, doing: str) -> Iterator[tuple[int, dict[str, Any]]]:
        ticker = Ticker(f"{doing} {file.name}", file.size, self.say)
        with bytes_of(file.path) as content:
            for number, line in enumerate(content, start=1):
                ticker.tick(content.tell())
                if line.strip():
                    yield number, _object(file, number, line)

    def _table(self, file: Found, rows: list[tuple[int, dict[str, Any]]], schema: pa.Schema) -> pa.Table:
        columns = [
            _column(file, [(at, row.get(field.name)) for at, row in rows], field, field.name in self.types)
            for field in schema
        ]
        return pa.table(columns, schema=schema)


def kind_of(value: Any) -> pa.DataType:
    """The type of one JSON value. Raises Clash."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        if not _fits(value):
            raise Clash(f"{value} is beyond int64")
        return pa.int64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        return pa.list_(reduce(merge, map(kind_of, value), pa.null()))
    return pa.struct([(name, kind_of(inner)) for name, inner in value.items()])


def _fits(value: int) -> bool:
    return -(2**63) <= value < 2**63


def merge(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type of a column that has values of both. Raises Clash."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(merge(a.value_type, b.value_type))
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        fields = {field.name: field.type for field in a}
        for field in b:
            fields[field.name] = merge(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    raise Clash(f"{_word(b)} here, {_word(a)} before")


def _word(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "an object"
    return "a list" if pa.types.is_list(kind) else str(kind)


def _column(file: Found, values: list[tuple[int, Any]], field: pa.Field, given: bool) -> pa.Array:
    try:
        return _array([value for _, value in values], field.type, given)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for line, value in values:
            try:
                _array([value], field.type, given)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                shown = json.dumps(value)[:60]
                fix = "correct the value, or the type in data.types"
                where = f"{file.path}:{line}"
                fault = Fault(where, field.name, str(field.type), f"{shown} is no such value", fix)
                raise refuse([fault]) from None
        raise


def _array(values: list[Any], kind: pa.DataType, given: bool) -> pa.Array:
    """`given`: the type was not told from these values, and pyarrow cuts some of them to it in silence."""
    if pa.types.is_temporal(kind):
        return pc.cast(pa.array(values, pa.string()), kind)
    if given and not all(_holds(kind, value) for value in values):
        raise ValueError(values)
    return pa.array(values, kind)


def _holds(kind: pa.DataType, value: Any) -> bool:
    if isinstance(value, list):
        return not pa.types.is_list(kind) or all(_holds(kind.value_type, inner) for inner in value)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        kinds = {field.name: field.type for field in kind}
        return all(name in kinds and _holds(kinds[name], inner) for name, inner in value.items())
    if isinstance(value, float) and pa.types.is_integer(kind):
        return value.is_integer()
    if isinstance(value, float) and kind == pa.float32():
        return abs(value) <= _LARGEST_FLOAT32 or not math.isfinite(value)
    return True


def _mixed(file: Found, line: int, name: str, clash: str) -> Fault:
    fix = f"write one kind of value, or give a type that holds all: data.types: {{{name}: ...}}"
    return Fault(f"{file.path}:{line}", name, "", clash, fix)


def _object(file: Found, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = _decoder.decode(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        rule = f"byte {line[error.start]:#04x} is not UTF-8 text"
        raise _broken(file, number, rule, "save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        said = str(error).split(": line")[0]
        raise _broken(file, number, f"it is not JSON ({said})", _ONE_A_LINE) from error
    if not isinstance(row, dict):
        rule = f"it holds a {type(row).__name__}, and a row is an object"
        raise _broken(file, number, rule, 'write one object a line: {"x": 1, "y": 2}')
    return row


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} is there twice")
    for name in row:
        if not name.isascii():
            name.encode()  # half a surrogate pair is a ValueError
    return row


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond float64")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_distinct, parse_float=_real)


def _broken(file: Found, number: int, rule: str, fix: str) -> DataError:
    return refuse([Fault(f"{file.path}:{number}", "", "", rule, fix)])
