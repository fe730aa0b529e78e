"""A data set of Parquet files: opening it, and reading rows of a fragment with their global numbers.

In: absolute paths or URIs (file, folder, glob), the columns to use. Out: `ParquetSource`, `Piece`s. Must not
know the order of training, Ray or recipes. What is wrong with the files comes out of `open` as one
`DataError`; what shows only in the pages, out of `read`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from god_ray.errors import DataError
from god_ray.ingest.columns import ROW, count_nulls, describe
from god_ray.ingest.fault import refuse
from god_ray.ingest.footers import read_footers
from god_ray.ingest.listing import Found, list_files
from god_ray.ingest.rowgroups import read_range
from god_ray.ingest.survey import survey
from god_ray.plan import Manifest


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of rows of one fragment, with all that it takes to read it: it travels without the manifest."""

    path: str
    size: int
    group: int
    lo: int
    hi: int
    """Rows [lo, hi) of the row group."""
    first_row: int
    """The global number of row `lo`."""

    @property
    def rows(self) -> int:
        return self.hi - self.lo


@dataclass(frozen=True)
class Reader:
    """Reads pieces; small, so that each read task can carry one."""

    columns: tuple[str, ...]
    allow_nulls: bool
    converted: tuple[pa.Field, ...] = ()
    """Columns that some file has in another type than the one in which they are read. Usually none."""

    def read(self, piece: Piece) -> pa.Table:
        """The piece's rows in file order, with the hidden column ROW. Raises DataError naming the file."""
        table = read_range(piece.path, piece.size, piece.group, piece.lo, piece.hi, self.columns)
        for field in self.converted:
            at = self.columns.index(field.name)
            table = table.set_column(at, field, table.column(at).cast(field.type))
        if not self.allow_nulls:
            _refuse_nulls(table, piece)
        rows = np.arange(piece.first_row, piece.first_row + piece.rows, dtype=np.int64)
        return table.append_column(ROW, pa.array(rows))


@dataclass(frozen=True, eq=False)
class ParquetSource:
    """An opened data set. Picklable; files are opened when read, at most 32 at once per thread."""

    schema: pa.Schema
    """The columns used; without the hidden ones."""
    manifest: Manifest
    row_bytes: int
    """Decoded bytes per row: exact for tensors, an estimate from the footers for other columns."""
    sizes: tuple[int, ...]
    """Bytes of each file of the manifest."""
    reader: Reader

    @classmethod
    def open(
        cls, paths: Sequence[str], columns: Sequence[str] | None = None, *, allow_any: bool = False
    ) -> ParquetSource:
        """Read the footers of all files.

        columns: the columns to use, None for all. allow_any: a preprocess or collate will turn the columns
        into tensors, so any type and nulls may pass. Raises DataError naming every fault at once.
        """
        files = list_files(list(paths))
        seen = survey(files, columns, allow_any)
        return cls(
            schema=seen.schema,
            manifest=Manifest.build([file.path for file in files], seen.groups, seen.fingerprint),
            row_bytes=seen.row_bytes,
            sizes=tuple(file.size for file in files),
            reader=Reader(tuple(seen.schema.names), allow_any, seen.converted),
        )

    @property
    def decoded_bytes(self) -> int:
        """Of all rows, as far as the footers tell."""
        return self.manifest.num_rows * self.row_bytes

    def piece(self, fragment: int, lo: int, hi: int) -> Piece:
        """Rows [lo, hi) of the fragment."""
        manifest = self.manifest
        if not 0 <= lo < hi <= manifest.rows[fragment]:
            raise IndexError(f"rows {lo} to {hi} of fragment {fragment}, which has {manifest.rows[fragment]}")
        file, offset = int(manifest.file[fragment]), int(manifest.offset[fragment])
        return Piece(
            path=manifest.files[file],
            size=self.sizes[file],
            group=int(manifest.group[fragment]),
            lo=offset + lo,
            hi=offset + hi,
            first_row=int(manifest.start[fragment]) + lo,
        )

    def largest_group(self) -> tuple[str, int, int]:
        """The row group with most rows: (file, rows, bytes in the file of the columns used)."""
        manifest = self.manifest
        last = int(np.argmax(manifest.offset + manifest.rows))
        file, rows = int(manifest.file[last]), int(manifest.offset[last] + manifest.rows[last])
        path = manifest.files[file]
        footers, faults = read_footers([Found(path, path, self.sizes[file])])
        if faults:
            raise refuse(faults)
        return path, rows, footers[0].stored_bytes(int(manifest.group[last]), self.schema.names)

    def read(self, fragment: int, lo: int, hi: int) -> pa.Table:
        """Rows [lo, hi) of the fragment in file order, with the hidden column ROW (int64)."""
        return self.reader.read(self.piece(fragment, lo, hi))


def _refuse_nulls(table: pa.Table, piece: Piece) -> None:
    for field in table.schema:
        if nulls := count_nulls(table.column(field.name)):
            raise DataError(
                f"{piece.path}: column {field.name} ({describe(field)}) holds {nulls} nulls "
                f"in rows {piece.lo} to {piece.hi} of row group {piece.group}",
                "A tensor has a value everywhere. The file has no statistics, so this shows only when read.",
                "fill them (data.preprocess, or the recipe's collate), or drop the column (data.columns)",
                file=piece.path,
                column=field.name,
                rule=f"{nulls} nulls in row group {piece.group}, and a tensor has no null",
            )
