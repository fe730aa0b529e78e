"""Which Arrow columns can become tensors, and the columns that god_ray hides in every table.

In: Arrow fields and columns. Out: their layout (element type and shape of one row's value), their flat
values, a text for each type. Must not know files, plans or Ray: Ray's tensor types are told by their names,
because a process in which Ray Data was never imported reads the same file as plain lists.
A mistake here shows as a wrong shape in `batch`, or as a `DataError` that names the column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ROW = "__row"
"""int64: the global number of the row, taken where the file is read."""
POSITION = "__position"
"""int64, only on the way through Ray: which task and which piece of it the row belongs to."""
HIDDEN = (ROW, POSITION)

_RAY_TENSORS = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
TENSOR_TYPES = "integers, floats, bool, fixed-size lists of those, fixed-size binary, Ray tensor columns"


@dataclass(frozen=True)
class Layout:
    """One row's value: `shape` elements of an Arrow primitive type."""

    element: pa.DataType
    shape: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        bits = 8 if pa.types.is_boolean(self.element) else self.element.bit_width
        return math.prod(self.shape) * int(bits) // 8


def layout(field: pa.Field) -> Layout | None:
    """How the column becomes a tensor; None if it can't."""
    kind = field.type
    if (shape := _ray_shape(field)) is not None:
        element = _storage(kind).value_type
        return Layout(element, shape) if _primitive(element) else None
    if isinstance(kind, pa.FixedShapeTensorType):
        in_order = kind.permutation is None or list(kind.permutation) == sorted(kind.permutation)
        return Layout(kind.value_type, tuple(kind.shape)) if in_order else None
    if pa.types.is_fixed_size_list(kind):
        inner = layout(kind.value_field)
        return inner and Layout(inner.element, (kind.list_size, *inner.shape))
    if pa.types.is_fixed_size_binary(kind):
        return Layout(pa.uint8(), (kind.byte_width,))
    return Layout(kind) if _primitive(kind) else None


def flat_values(column: pa.ChunkedArray, found: Layout) -> pa.Array:
    """All elements of the column in one primitive array, `found.shape` per row.

    Raises ValueError with the number of nulls if there are any: `flatten` would drop them silently.
    """
    # combine_chunks copies even a single chunk.
    values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    num_rows = len(values)
    while True:
        if values.null_count:
            raise ValueError(f"{values.null_count} nulls")
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        elif pa.types.is_fixed_size_binary(values.type):
            width, buffer = values.type.byte_width, values.buffers()[1]
            start = values.offset * width
            return pa.Array.from_buffers(pa.uint8(), len(values) * width, [None, buffer], offset=start)
        elif _primitive(values.type):
            break
        else:
            values = values.flatten()
    if len(values) != num_rows * math.prod(found.shape):
        raise ValueError(f"{len(values)} elements in {num_rows} rows, not {found.shape} in each")
    return values


def hidden_column(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Its values; read-only where they share the table's memory."""
    return np.asarray(table.column(name).to_numpy(), dtype=np.int64)


def count_nulls(column: pa.ChunkedArray) -> int:
    """Nulls at any depth of a column that has a layout."""
    return sum(_count_nulls(chunk) for chunk in column.chunks)


def _count_nulls(values: pa.Array) -> int:
    inside = 0
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.type.num_fields:
        inside = _count_nulls(values.flatten())
    return int(values.null_count) + inside


def describe(field: pa.Field) -> str:
    """The type as text, the same whether or not Ray's types are registered in this process."""
    if (shape := _ray_shape(field)) is not None:
        return f"tensor<{_storage(field.type).value_type}>{list(shape)}"
    return str(field.type)


def columns_of_leaves(schema: pa.Schema) -> Iterator[str]:
    """The top-level column of each Parquet leaf column, in the order of the file."""
    for field in schema:
        for _ in range(_num_leaves(field.type)):
            yield field.name


def _num_leaves(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _num_leaves(kind.storage_type)
    return sum(_num_leaves(kind.field(i).type) for i in range(kind.num_fields)) if kind.num_fields else 1


def _ray_shape(field: pa.Field) -> tuple[int, ...] | None:
    if getattr(field.type, "extension_name", "") in _RAY_TENSORS:
        return tuple(field.type.shape)
    told = field.metadata or {}
    if told.get(b"ARROW:extension:name", b"").decode() in _RAY_TENSORS:
        return tuple(json.loads(told[b"ARROW:extension:metadata"]))
    return None


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _primitive(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
