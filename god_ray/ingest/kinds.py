"""One type for a column, whatever file a row comes from; and how a type that is no tensor could become one.

In: Arrow types as the files have them. Out: the type that a column is read as, which holds every value
exactly, or None. Pure. Must not know files. A mistake here would change values without a word: each rule is
a row of docs/data.md with a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types


def as_read(kind: pa.DataType) -> pa.DataType:
    """Text and bytes with 64-bit offsets (2 GiB and more), dictionaries as their values; others as they are.

    Codes of a dictionary mean something in their own file only, so nobody gets to see them.
    """
    if types.is_dictionary(kind):
        return as_read(kind.value_type)
    if types.is_string(kind) or types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary(kind) or types.is_binary_view(kind):
        return pa.large_binary()
    return _rebuilt(kind, as_read)


def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both exactly; None if there is none. Both `as_read`."""
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    for same in (types.is_signed_integer, types.is_unsigned_integer, types.is_floating):
        if same(one) and same(other):
            return max(one, other, key=lambda kind: kind.bit_width)
    if types.is_large_list(one) and types.is_list(other):
        one, other = other, one
    if types.is_list(one) and types.is_large_list(other):
        one = pa.large_list(one.value_field)
    return _merged_inside(one, other)


def _merged_inside(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one.id != other.id or isinstance(one, pa.BaseExtensionType) or one.num_fields != other.num_fields:
        return None
    if types.is_fixed_size_list(one) and one.list_size != other.list_size:
        return None
    if types.is_struct(one) and _names(one) != _names(other):
        return None
    pairs = [_merged_field(one.field(i), other.field(i)) for i in range(one.num_fields)]
    inside = [field for field in pairs if field is not None]
    return _with_fields(one, inside) if inside and len(inside) == len(pairs) else None


def _merged_field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    kind = merged(one.type, other.type)
    return kind and one.with_type(kind).with_nullable(one.nullable or other.nullable)


def _names(kind: pa.StructType) -> list[str]:
    return [kind.field(i).name for i in range(kind.num_fields)]


def _rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The nested type with changed types inside; itself if nothing changes."""
    if isinstance(kind, pa.BaseExtensionType) or not kind.num_fields:
        return kind
    inside = [kind.field(i).with_type(change(kind.field(i).type)) for i in range(kind.num_fields)]
    same = all(field.type == kind.field(i).type for i, field in enumerate(inside))
    return kind if same else _with_fields(kind, inside)


def _with_fields(kind: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct(fields)
    if types.is_map(kind):
        entries = fields[0].type
        return pa.map_(entries.field(0), entries.field(1), keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(fields[0])
    return pa.list_(fields[0]) if types.is_list(kind) else kind


_ADVICE: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (types.is_null, "it holds nothing but nulls"),
    (
        lambda kind: types.is_large_string(kind) or types.is_large_binary(kind),
        "give each value a number there, for example pyarrow.compute.index_in(column, value_set=[...])",
    ),
    (types.is_decimal, 'column.cast("float64") rounds; cents as int64 do not'),
    (
        types.is_timestamp,
        'column.cast("int64") counts units since 1970 in UTC, pyarrow.compute.hour and the like its zone\'s',
    ),
    (types.is_date32, 'column.cast("int32") counts days since 1970'),
    (
        lambda kind: types.is_date64(kind) or types.is_time(kind) or types.is_duration(kind),
        'column.cast("int64") counts its units (a time32: "int32")',
    ),
    (
        lambda kind: types.is_list(kind) or types.is_large_list(kind),
        "column.cast(pyarrow.list_(pyarrow.float32(), N)) if each row has N numbers, else pad in a collate",
    ),
    (types.is_struct, 'pyarrow.compute.struct_field(column, "name") is one field of it'),
)


def advice(kind: pa.DataType) -> str:
    """How such a column, which is no tensor, could become one; "" if there is no usual way."""
    return next((text for fits, text in _ADVICE if fits(kind)), "")
