"""What the files of a set agree on for each column: one type, or a fault that names both files.

In: footers of files with rows, the columns wanted. Out: `Column`s, and faults. The order of the files makes
no difference to what is refused. Must not read data. Failures are `Fault`s, never exceptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from god_ray.ingest.columns import HIDDEN, TENSOR_TYPES, describe, layout
from god_ray.ingest.fault import Fault
from god_ray.ingest.footers import Footer
from god_ray.ingest.kinds import advice, as_read, merged

_SHOWN_NAMES = 20
_REWRITE = "write all files with one schema, or name the columns to use in data.columns"
_FILL = "fill them (data.preprocess, or the recipe's collate), or drop the column (data.columns)"


@dataclass
class Column:
    """A column over all files."""

    field: pa.Field
    """As it is read."""
    told_by: Footer
    """The file that says so."""
    stored: pa.Field
    """As it is in that file."""
    uniform: bool = True
    """Whether every file has it in the type in which it is read."""


def agree(footers: Sequence[Footer], columns: Sequence[str] | None) -> tuple[dict[str, Column], list[Fault]]:
    """The columns used, in the order asked for or of the first file; and what is wrong with their schemas.

    columns: None for all, and then every file must have all of them.
    """
    alike = _by_schema(footers)
    firsts = [group[0] for group in alike]
    there = dict.fromkeys(name for footer in firsts for name in footer.names)
    names = list(dict.fromkeys(columns or there))
    faults = list(_unusable_names(firsts, names))
    if columns is not None:
        faults += _unknown(list(there), [name for name in names if name not in there], firsts[0])
    unusable = {fault.column for fault in faults}
    agreed = {}
    for name in names:
        if name not in unusable:
            agreed[name] = _agree(name, firsts, faults)
    files = {group[0].found.path: group for group in alike}
    every = [replace(fault, file=footer.found.path) for fault in faults for footer in files[fault.file]]
    return agreed, [*every, *_int96_faults(footers, agreed.values())]


def missing_columns(names: Sequence[str], wanted: Sequence[str], file: str = "") -> list[Fault]:
    """A fault for each wanted column that is not among the names, with the nearest one."""
    faults = []
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            more = ", ..." if len(names) > _SHOWN_NAMES else ""
            fix = (
                f"did you mean {near[0]}?" if near else f"use one of {', '.join(names[:_SHOWN_NAMES])}{more}"
            )
            faults.append(Fault(file, name, "", "there is no such column", fix))
    return faults


def tensor_faults(columns: dict[str, Column], footers: Sequence[Footer]) -> Iterator[Fault]:
    """What keeps the columns from being tensors: their types, and nulls as far as statistics tell."""
    for name, column in columns.items():
        if layout(column.field) is None:
            hint = advice(column.field.type)
            fix = "drop it (data.columns), or convert it with data.preprocess or the recipe's collate"
            rule = f"this type is not a tensor (those are {TENSOR_TYPES})"
            path, kind = column.told_by.found.path, describe(column.stored)
            yield Fault(path, name, kind, rule, f"{fix}: {hint}" if hint else fix)
    usable = [name for name, column in columns.items() if layout(column.field) is not None]
    for footer in footers:
        for name in usable:
            if name in footer.fields and (nulls := _nulls(footer, name)):
                rule = f"{nulls} of {footer.metadata.num_rows} values are null, and a tensor has no null"
                yield Fault(footer.found.path, name, describe(footer.fields[name]), rule, _FILL)


def partition_faults(footers: Sequence[Footer]) -> Iterator[Fault]:
    fix = "write the value into the files, or leave it out by naming the columns to use in data.columns"
    for footer in footers:
        for key in _partition_keys(footer):
            if key not in footer.fields:
                yield Fault(footer.found.path, key, "", "its value is only in the folder's name", fix)
                return  # one is enough: all of them lie in such folders


def _partition_keys(footer: Footer) -> list[str]:
    return [part.split("=")[0] for part in footer.found.name.split("/")[:-1] if "=" in part]


def _by_schema(footers: Sequence[Footer]) -> list[list[Footer]]:
    """Files of one schema: what holds for the first holds for all of them. Usually that is one group."""
    found: list[tuple[pa.Schema, list[Footer]]] = []
    for footer in footers:
        schema = footer.schema.remove_metadata()  # pandas writes into it how many rows there are
        alike = next((group for other, group in found if schema.equals(other, check_metadata=True)), None)
        if alike is None:
            found.append((schema, [footer]))
        else:
            alike.append(footer)
    return [group for _, group in found]


def _unusable_names(footers: Sequence[Footer], names: Sequence[str]) -> Iterator[Fault]:
    told = set()
    for footer in footers:
        for name in names:
            if name in HIDDEN and name in footer.names and name not in told:
                yield Fault(footer.found.path, name, "", "the name is reserved", "rename the column")
                told.add(name)
        if len(footer.fields) < len(set(footer.names)):
            for name in sorted({*names} & ({*footer.names} - {*footer.fields}) - told):
                rule = f"{footer.names.count(name)} columns have this name"
                yield Fault(footer.found.path, name, "", rule, "rename or drop all but one")
                told.add(name)


def _unknown(names: Sequence[str], wanted: Sequence[str], first: Footer) -> Iterator[Fault]:
    for fault in missing_columns(names, wanted, first.found.path):
        if fault.column in _partition_keys(first):
            rule, fix = "its value is only in the folder's name", "write the value into the files"
            yield Fault(first.found.path, fault.column, "", rule, fix)
        else:
            yield fault


def _agree(name: str, footers: Sequence[Footer], faults: list[Fault]) -> Column:
    """One column through the schemas; adds to the faults."""
    first = next(footer for footer in footers if name in footer.fields)
    field = first.fields[name]
    kind = as_read(field.type)
    column = Column(field.with_type(kind), first, field, kind == field.type)
    for footer in footers:
        stored = footer.fields.get(name)
        if stored is None:
            rule = f"the column is missing; {first.found.path} has it"
            faults.append(Fault(footer.found.path, name, describe(field), rule, _REWRITE))
        elif footer is not first and (fault := _join(column, stored, footer)) is not None:
            faults.append(fault)
    return column


def _join(column: Column, stored: pa.Field, footer: Footer) -> Fault | None:
    """Let the column be what holds this file's values too."""
    if describe(stored) == describe(column.stored) and stored.nullable == column.field.nullable:
        return None
    kind = _merged(column, stored)
    if kind is None:
        rule = f"it is {describe(column.stored)} in {column.told_by.found.path}"
        return Fault(
            footer.found.path,
            stored.name,
            describe(stored),
            f"{rule}, and no type holds the values of both exactly",
            _REWRITE,
        )
    column.uniform = False
    nullable = stored.nullable or column.field.nullable
    if kind != column.field.type:
        column.field, column.told_by, column.stored = column.field.with_type(kind), footer, stored
    column.field = column.field.with_nullable(nullable)
    return None


def _merged(column: Column, stored: pa.Field) -> pa.DataType | None:
    ray_tensors = [field for field in (column.stored, stored) if describe(field).startswith("tensor<")]
    if ray_tensors:  # told by metadata in a process that does not know their type
        return column.field.type if describe(stored) == describe(column.stored) else None
    return merged(column.field.type, as_read(stored.type))


def _int96_faults(footers: Sequence[Footer], columns: Iterable[Column]) -> Iterator[Fault]:
    """Arrow reads them as nanoseconds, modulo 2**64, and says nothing."""
    rule = "these are INT96 timestamps, and those outside the years 1677 to 2262 would change"
    fix = "write the files again with 64-bit timestamps, or drop the column (data.columns)"
    suspects = [c.field.name for c in columns if "timestamp[ns" in str(c.field.type)]
    for name in suspects:
        for footer in footers:
            leaves = footer.leaves.get(name, ())
            if any(footer.metadata.schema.column(leaf).physical_type == "INT96" for leaf in leaves):
                yield Fault(footer.found.path, name, describe(footer.fields[name]), rule, fix)


def _nulls(footer: Footer, name: str) -> int:
    """As far as statistics tell; what they don't is seen when the rows are read."""
    metadata: pq.FileMetaData = footer.metadata
    if pa.types.is_null(footer.fields[name].type):
        return int(metadata.num_rows)
    total = 0
    for leaf in footer.leaves[name]:
        if metadata.schema.column(leaf).max_definition_level == 0:
            continue  # a required column
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(leaf).statistics
            if statistics is not None and statistics.has_null_count:
                total += statistics.null_count
    return total
