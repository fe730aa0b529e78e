"""Arrow tables to numpy arrays, by column.

In: a table. Out: one array per column, the first dimension is the row. Must not know files, plans
or recipes. Failures are `DataError`s that name the column, its type and what to do.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from god_ray.errors import DataError
from god_ray.ingest.columns import HIDDEN, TENSOR_TYPES, describe, flat_values, layout
from god_ray.ingest.kinds import advice

Array = NDArray[Any]


def array_columns(table: pa.Table) -> dict[str, Array]:
    """The visible columns as arrays `[num_rows, *shape]`.

    Numbers share the table's memory and are read-only. Raises DataError for what has no fixed shape or holds
    nulls.
    """
    return {
        name: values.to_numpy(zero_copy_only=False).reshape(table.num_rows, *shape)
        for name, (values, shape) in _flat_columns(table).items()
    }


def _flat_columns(table: pa.Table) -> dict[str, tuple[pa.Array, tuple[int, ...]]]:
    found = {}
    for field in table.schema:
        if field.name not in HIDDEN:
            found[field.name] = _flat_column(table.column(field.name), field)
    return found


def _flat_column(column: pa.ChunkedArray, field: pa.Field) -> tuple[pa.Array, tuple[int, ...]]:
    how = layout(field)
    if how is None:
        raise DataError(
            f"column {field.name} has type {describe(field)}, which is not a tensor",
            f"Tensors are made of {TENSOR_TYPES}.",
            _convert(field),
            column=field.name,
        )
    try:
        return flat_values(column, how), how.shape
    except ValueError as error:
        raise DataError(
            f"column {field.name} ({describe(field)}) holds {error}",
            "A tensor has a value everywhere.",
            "fill them in data.preprocess, or give the recipe a collate",
            column=field.name,
        ) from error


def _convert(field: pa.Field) -> str:
    fix = "drop it (data.columns), convert it in data.preprocess, or give the recipe a collate"
    hint = advice(field.type)
    return f"{fix}: {hint}" if hint else fix
