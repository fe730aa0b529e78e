"""What the footers of a data set's files say together, and everything that is wrong with them, at once.

In: files and the columns wanted. Out: `Survey` (schema, row groups, fingerprint, bytes per row). Footers are
read, no data. Must not know plans or how rows are read. All faults come out in one `DataError`, each naming
file, column, type and fix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from god_ray.ingest.agreement import agree, partition_faults, tensor_faults
from god_ray.ingest.columns import describe, layout
from god_ray.ingest.fault import Fault, refuse
from god_ray.ingest.footers import Footer, read_footers
from god_ray.ingest.listing import Found

_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}


@dataclass(frozen=True)
class Survey:
    files: tuple[Found, ...]
    schema: pa.Schema
    """The columns used, in the order asked for, as they are read."""
    converted: tuple[pa.Field, ...]
    """Those of them that some file has in another type."""
    groups: list[tuple[int, int, int]]
    """(index into files, row group, rows)."""
    fingerprint: str
    row_bytes: int


def survey(files: Sequence[Found], columns: Sequence[str] | None, allow_any: bool) -> Survey:
    """Read all footers. Raises DataError with every fault in `data["faults"]`."""
    footers, faults = read_footers(files)
    filled = [footer for footer in footers if footer.metadata.num_rows]
    if not filled:
        raise refuse(faults or [_no_rows(files)])
    agreed, differences = agree(filled, columns)
    faults += differences
    if not allow_any:
        faults += tensor_faults(agreed, filled)
    if columns is None:
        faults += partition_faults(filled)
    if faults:
        raise refuse(faults)
    schema = pa.schema([column.field for column in agreed.values()])
    return Survey(
        files=tuple(files),
        schema=schema,
        converted=tuple(column.field for column in agreed.values() if not column.uniform),
        groups=[
            (index, group, rows)
            for index, footer in enumerate(footers)
            for group, rows in enumerate(footer.group_rows)
        ],
        fingerprint=_fingerprint(footers, [filled[0].fields[name] for name in agreed]),
        row_bytes=_row_bytes(filled, schema),
    )


def _no_rows(files: Sequence[Found]) -> Fault:
    return Fault(files[0].path, "", "", f"there are no rows ({len(files)} files)", "point at data with rows")


def _fingerprint(footers: Sequence[Footer], fields: Sequence[pa.Field]) -> str:
    """Of the files as they are: in which type a column is read follows from them."""
    said = {
        "files": [[f.found.name, f.found.size, f.group_rows, f.digest] for f in footers],
        "schema": [[field.name, describe(field)] for field in fields],
    }
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()


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
        for group in range(footer.metadata.num_row_groups):
            described = footer.metadata.row_group(group)
            stored += sum(_chunk_bytes(described.column(leaf)) for leaf in footer.leaves[name])
    return int(-(-stored // num_rows))


def _chunk_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    """Numbers that repeat take little of a file, and their full width in memory."""
    width = _WIDTHS.get(chunk.physical_type, 0)
    return max(int(chunk.total_uncompressed_size), int(chunk.num_values) * width)
