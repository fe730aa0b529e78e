"""What the footers of a data set's files say, and everything that is wrong with them, at once.

In: files and the columns wanted. Out: `Survey` (schema, row groups, fingerprint, bytes per row). Footers are
read, no data. Must not know plans or how rows are read. All faults come out in one `DataError`, each naming
file, column, type and fix.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from god_ray.errors import DataError
from god_ray.ingest.columns import HIDDEN, TENSOR_TYPES, columns_of_leaves, describe, layout
from god_ray.ingest.listing import Found

_SHOWN = 20
_LENGTH_BYTES = 8  # the last ones of a Parquet file: the footer's length and "PAR1"
_END_BYTES = 1 << 16  # read at one go: most footers fit


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with the data."""

    file: str
    column: str
    type: str
    rule: str
    fix: str

    def __str__(self) -> str:
        subject = ": ".join(part for part in (self.file, self.column and f"column {self.column}") if part)
        kind = f" ({self.type})" if self.type else ""
        return f"{subject}{kind}: {self.rule}. Fix: {self.fix}"


@dataclass(frozen=True)
class Footer:
    found: Found
    schema: pa.Schema
    metadata: pq.FileMetaData
    digest: str
    """Of its bytes (statistics, offsets, sizes), which other values of the same size rarely leave alike."""


@dataclass(frozen=True)
class Survey:
    files: tuple[Found, ...]
    schema: pa.Schema
    """The columns used, in the order asked for."""
    groups: list[tuple[int, int, int]]
    """(index into files, row group, rows)."""
    fingerprint: str
    row_bytes: int


def survey(files: Sequence[Found], columns: Sequence[str] | None, allow_any: bool) -> Survey:
    """Read all footers. Raises DataError with every fault in `data["faults"]`."""
    footers, faults = _read_footers(files)
    filled = [footer for footer in footers if footer.metadata.num_rows]
    if not filled:
        raise refuse(faults or [_no_rows(files)])
    first = filled[0]
    faults += missing_columns(first.schema, columns or (), first.found.path)
    faults += _unusable_names(first, columns)
    names = [name for name in columns or first.schema.names if name in first.schema.names]
    faults += _schema_faults(filled, names, closed=columns is None)
    if not allow_any:
        faults += _type_faults(first, names)
        faults += _null_faults(filled, names)
    if columns is None:
        faults += _partition_faults(filled)
    if faults:
        raise refuse(faults)
    schema = pa.schema([first.schema.field(name) for name in names])
    return Survey(
        files=tuple(files),
        schema=schema,
        groups=[
            (index, group, footer.metadata.row_group(group).num_rows)
            for index, footer in enumerate(footers)
            for group in range(footer.metadata.num_row_groups)
        ],
        fingerprint=_fingerprint(footers, schema),
        row_bytes=_row_bytes(filled, schema),
    )


def refuse(faults: Sequence[Fault]) -> DataError:
    """One error for all of them."""
    if len(faults) == 1:
        fault = faults[0]
        return DataError(str(fault), faults=list(faults), file=fault.file, column=fault.column)
    lines = [str(fault) for fault in faults[:_SHOWN]]
    if len(faults) > _SHOWN:
        lines.append(f"... and {len(faults) - _SHOWN} more")
    return DataError(f"{len(faults)} faults in the data:", "\n  ".join(lines), faults=list(faults))


def missing_columns(schema: pa.Schema, wanted: Sequence[str], file: str = "") -> list[Fault]:
    """A fault for each wanted column that the schema lacks, with the nearest name."""
    faults = []
    for name in wanted:
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, n=1)
            fix = f"did you mean {near[0]}?" if near else f"use one of {', '.join(schema.names)}"
            faults.append(Fault(file, name, "", "there is no such column", fix))
    return faults


def _read_footers(files: Sequence[Found]) -> tuple[list[Footer], list[Fault]]:
    footers: list[Footer] = []
    faults: list[Fault] = []
    with ThreadPoolExecutor(8) as pool:  # for storage with latency; the reading itself releases the GIL
        for read in pool.map(_read_footer, files):
            if isinstance(read, Footer):
                footers.append(read)
            else:
                faults.append(read)
    return footers, faults


def _read_footer(found: Found) -> Footer | Fault:
    if found.size == 0:
        return Fault(found.path, "", "", "the file is empty (0 bytes)", "remove it, or write it again")
    try:
        content = _end_of(found.path)
        metadata = pq.read_metadata(pa.BufferReader(content))
        digest = hashlib.blake2b(_footer_in(content), digest_size=16).hexdigest()
        return Footer(found, metadata.schema.to_arrow_schema(), metadata, digest)
    except (OSError, pa.ArrowException) as error:
        said = str(error).splitlines()[0].rstrip(".")
        if isinstance(error, OSError) and error.errno:
            return Fault(
                found.path, "", "", f"it cannot be read ({said})", "make it readable, or take it out"
            )
        rule = f"it is not a whole Parquet file ({said})"
        return Fault(found.path, "", "", rule, "remove it, or write it again")


def _end_of(path: str) -> bytes:
    """The footer and its length, or the whole of a file whose end is not one: Arrow says why."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _END_BYTES, 0))
        content = file.read()
        needed = _footer_bytes(content) + _LENGTH_BYTES
        if len(content) < needed <= size:
            file.seek(size - needed)
            content = file.read(needed)
    return content


def _footer_in(content: bytes) -> bytes:
    return content[-_footer_bytes(content) - _LENGTH_BYTES : -_LENGTH_BYTES]


def _footer_bytes(content: bytes) -> int:
    return int.from_bytes(content[-_LENGTH_BYTES:-4], "little")


def _no_rows(files: Sequence[Found]) -> Fault:
    return Fault(files[0].path, "", "", f"there are no rows ({len(files)} files)", "point at data with rows")


def _unusable_names(first: Footer, columns: Sequence[str] | None) -> list[Fault]:
    faults = []
    names = first.schema.names
    for name in sorted({name for name in columns or names if names.count(name) > 1}):
        rule = f"{names.count(name)} columns have this name"
        faults.append(Fault(first.found.path, name, "", rule, "rename or drop all but one"))
    for name in HIDDEN:
        if name in (columns or names):
            faults.append(Fault(first.found.path, name, "", "the name is reserved", "rename the column"))
    return faults


def _schema_faults(footers: Sequence[Footer], names: Sequence[str], closed: bool) -> Iterator[Fault]:
    """closed: columns that only later files have count as a difference."""
    first = footers[0]
    expected = {name: describe(first.schema.field(name)) for name in names if _once(first, name)}
    rewrite = "write all files with one schema, or name the columns to use in data.columns"
    for footer in footers[1:]:
        if footer.schema.equals(first.schema):
            continue
        for name, kind in expected.items():
            at = footer.schema.get_field_index(name)
            if at < 0:
                rule = f"the column is missing; {first.found.path} has it"
                yield Fault(footer.found.path, name, kind, rule, rewrite)
            elif (differs := describe(footer.schema.field(at))) != kind:
                rule = f"it is {kind} in {first.found.path}"
                yield Fault(footer.found.path, name, differs, rule, rewrite)
        if closed:
            for name in footer.schema.names:
                if name not in expected:
                    rule = f"{first.found.path} has no such column"
                    yield Fault(footer.found.path, name, "", rule, rewrite)


def _once(footer: Footer, name: str) -> bool:
    return bool(footer.schema.names.count(name) == 1)


def _type_faults(first: Footer, names: Sequence[str]) -> Iterator[Fault]:
    fix = "drop it (data.columns), or convert it with data.preprocess or the recipe's collate"
    for name in names:
        if _once(first, name) and layout(first.schema.field(name)) is None:
            kind = describe(first.schema.field(name))
            rule = f"this type is not a tensor (those are {TENSOR_TYPES})"
            yield Fault(first.found.path, name, kind, rule, fix)


def _null_faults(footers: Sequence[Footer], names: Sequence[str]) -> Iterator[Fault]:
    """What statistics tell; columns without them are checked when read."""
    fix = "fill them (data.preprocess, or the recipe's collate), or drop the column (data.columns)"
    for footer in footers:
        leaves = list(columns_of_leaves(footer.schema))
        for name in names:
            at = [i for i, leaf in enumerate(leaves) if leaf == name]
            nulls = sum(_nulls(footer.metadata, i) for i in at)
            if nulls:
                kind = describe(footer.schema.field(name)) if _once(footer, name) else ""
                rule = f"{nulls} of {footer.metadata.num_rows} values are null, and a tensor has no null"
                yield Fault(footer.found.path, name, kind, rule, fix)


def _nulls(metadata: pq.FileMetaData, leaf: int) -> int:
    if metadata.schema.column(leaf).max_definition_level == 0:
        return 0  # a required column
    return sum(
        statistics.null_count
        for group in range(metadata.num_row_groups)
        if (statistics := metadata.row_group(group).column(leaf).statistics) and statistics.has_null_count
    )


def _partition_faults(footers: Sequence[Footer]) -> Iterator[Fault]:
    fix = "write the value into the files, or leave it out by naming the columns to use in data.columns"
    for footer in footers:
        keys = [part.split("=")[0] for part in footer.found.name.split("/")[:-1] if "=" in part]
        if keys:
            yield Fault(
                footer.found.path,
                keys[0],
                "",
                "its value is only in the folder's name",
                fix,
            )
            return  # one is enough: all of them lie in such folders


def _fingerprint(footers: Sequence[Footer], schema: pa.Schema) -> str:
    said = {
        "files": [[f.found.name, f.found.size, _group_rows(f.metadata), f.digest] for f in footers],
        "schema": [[field.name, describe(field)] for field in schema],
    }
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()


def _group_rows(metadata: pq.FileMetaData) -> list[int]:
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _row_bytes(footers: Sequence[Footer], schema: pa.Schema) -> int:
    """Decoded: exact for tensors; what the file needs uncompressed for columns without a fixed width."""
    total = 0
    for field in schema:
        how = layout(field)
        total += how.row_bytes if how else _average_bytes(footers, field.name)
    return max(total, 1)


def _average_bytes(footers: Sequence[Footer], name: str) -> int:
    stored, num_rows = 0, 0
    for footer in footers:
        num_rows += footer.metadata.num_rows
        leaves = [i for i, leaf in enumerate(columns_of_leaves(footer.schema)) if leaf == name]
        for group in range(footer.metadata.num_row_groups):
            described = footer.metadata.row_group(group)
            stored += sum(described.column(leaf).total_uncompressed_size for leaf in leaves)
    return int(-(-stored // num_rows))
