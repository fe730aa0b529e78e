"""The items of a map-style torch Dataset as columns.

In: an object with `len` and `[i]` whose items are numbers, texts, arrays, tensors, or tuples or dicts of
those. Out: tables; a dict's keys name the columns, a tuple's are `field_0`, `field_1`, anything else `value`.
An item of another shape, type or set of names than the first shows as a DataError with its number.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from god_ray.errors import DataError
from god_ray.saying import Ticker

ROWS = 4096
SINGLE = "value"
_FIX = "give every item the same names, types and shapes"


def is_map_style(returned: Any) -> bool:
    """Whether its rows have the numbers 0, 1, 2 ...: no dict, and no text."""
    numbered = hasattr(returned, "__len__") and hasattr(returned, "__getitem__")
    return numbered and not isinstance(returned, str | bytes | Mapping)


def tables(dataset: Any, subject: str, ticker: Ticker) -> Iterator[pa.Table]:
    schema: pa.Schema | None = None
    for start in range(0, len(dataset), ROWS):
        numbers = range(start, min(start + ROWS, len(dataset)))
        rows = [_fields(dataset[number]) for number in numbers]
        names = list(rows[0]) if schema is None else schema.names
        for number, row in zip(numbers, rows, strict=True):
            if list(row) != names:
                raise _refused(subject, number, f"has {', '.join(row)}; those before have {', '.join(names)}")
        columns = {name: [row[name] for row in rows] for name in names}
        if schema is None:
            schema = pa.schema([(name, _type(values, name, subject)) for name, values in columns.items()])
        yield pa.table(
            [_column(columns[field.name], field, subject, start) for field in schema], schema=schema
        )
        ticker.tick(numbers.stop)


def _fields(item: Any) -> dict[str, Any]:
    """An item's values by column, tensors as arrays."""
    if isinstance(item, Mapping):
        named = {str(name): value for name, value in item.items()}
    elif hasattr(item, "_fields"):
        named = dict(zip(item._fields, item, strict=True))
    elif isinstance(item, tuple):
        named = {f"field_{index}": value for index, value in enumerate(item)}
    else:
        named = {SINGLE: item}
    return {name: _value(value) for name, value in named.items()}


def _value(value: Any) -> Any:
    if hasattr(value, "detach"):  # a tensor
        try:
            value = value.detach().cpu().numpy()
        except TypeError:  # bfloat16 and the like, which numpy does not have: refused as what they are
            return value
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _type(values: list[Any], name: str, subject: str) -> pa.DataType:
    """Of the first rows: an array's shape and element are part of it."""
    first: Any = next((value for value in values if value is not None), None)
    try:
        if isinstance(first, np.ndarray):
            if 0 in first.shape:
                raise ValueError("It has no elements")
            kind = pa.from_numpy_dtype(first.dtype)
            for width in reversed(first.shape):
                kind = pa.list_(kind, width)
            return kind
        if isinstance(first, np.generic):
            return pa.from_numpy_dtype(first.dtype)
        return pa.array(values).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        shown = f"{first.dtype} {list(first.shape)}" if hasattr(first, "dtype") else type(first).__name__
        raise DataError(
            f"{subject}: {name} of the first items is {shown}, which cannot be kept.",
            f"{error}.",
            "return numbers, texts, arrays or tensors (an image: numpy.asarray(image))",
        ) from error


def _column(values: list[Any], field: pa.Field, subject: str, start: int) -> pa.Array:
    for number, value in enumerate(values, start):
        if not _is_like(value, field.type):
            shown = f"{value.dtype} {list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
            raise _refused(subject, number, f"has a {field.name} of {shown}; the first is {field.type}")
    if not isinstance(values[0], np.ndarray):
        return pa.array([_plain(value) for value in values], field.type)
    return _fixed(np.stack(values), field.type)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_like(value: Any, kind: pa.DataType) -> bool:
    if isinstance(value, np.ndarray):
        for width in value.shape:
            if not pa.types.is_fixed_size_list(kind) or kind.list_size != width:
                return False
            kind = kind.value_type
        return bool(pa.from_numpy_dtype(value.dtype) == kind)
    if isinstance(value, np.generic):
        return bool(pa.from_numpy_dtype(value.dtype) == kind)
    if isinstance(value, bool | int | float | str | bytes | datetime.date):  # a datetime is a date, too
        return bool(_scalar_type(value) == kind)
    try:
        pa.array([value], kind)  # None, lists
    except (pa.ArrowException, TypeError, ValueError):
        return False
    return True


def _scalar_type(value: Any) -> pa.DataType | None:
    try:
        return pa.scalar(value).type
    except (pa.ArrowException, OverflowError):
        return None


def _fixed(stacked: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    values = pa.array(stacked.reshape(-1))
    for width in reversed(stacked.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, width)
    return values.cast(kind)


def _refused(subject: str, number: int, what: str) -> DataError:
    return DataError(f"{subject}: item {number} {what}.", "A column has one type.", _FIX)
