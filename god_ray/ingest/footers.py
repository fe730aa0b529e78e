"""The footers of Parquet files: what each file says it holds. No data is read.

In: found files. Out: a `Footer` each, or a `Fault` that says why there is none. Must not know which columns
are used, nor other files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from god_ray.ingest.columns import columns_of_leaves
from god_ray.ingest.fault import Fault
from god_ray.ingest.listing import Found
from god_ray.storage import inputs

_LENGTH_BYTES = 8  # the last ones of a Parquet file: the footer's length and "PAR1"
_END_BYTES = 1 << 16  # read at one go: most footers fit


@dataclass(frozen=True)
class Footer:
    found: Found
    schema: pa.Schema
    metadata: pq.FileMetaData
    digest: str
    """Of its bytes (statistics, offsets, sizes), which other values of the same size rarely leave alike."""

    @cached_property
    def names(self) -> list[str]:
        """Of the columns: Arrow makes a new list each time."""
        return list(self.schema.names)

    @cached_property
    def fields(self) -> dict[str, pa.Field]:
        """By name, of names that are there once."""
        every = dict(zip(self.names, self.schema))
        if len(every) < len(self.names):
            every = {name: field for name, field in every.items() if self.names.count(name) == 1}
        return every

    @cached_property
    def leaves(self) -> dict[str, list[int]]:
        """Each column's Parquet leaf columns."""
        found: dict[str, list[int]] = {}
        for leaf, name in enumerate(columns_of_leaves(self.schema)):
            found.setdefault(name, []).append(leaf)
        return found

    def stored_bytes(self, group: int, names: Iterable[str]) -> int:
        """What these columns of the row group take in the file."""
        described = self.metadata.row_group(group)
        leaves = (leaf for name in names for leaf in self.leaves[name])
        return sum(described.column(leaf).total_compressed_size for leaf in leaves)

    @property
    def group_rows(self) -> list[int]:
        return [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]


def read_footers(files: Sequence[Found]) -> tuple[list[Footer], list[Fault]]:
    footers: list[Footer] = []
    faults: list[Fault] = []
    with ThreadPoolExecutor(8) as pool:  # for storage with latency; the reading itself releases the GIL
        for read in pool.map(_read, files):
            if isinstance(read, Footer):
                footers.append(read)
            else:
                faults.append(read)
    return footers, faults


def _read(found: Found) -> Footer | Fault:
    if found.size == 0:
        return Fault(found.path, "", "", "the file is empty (0 bytes)", "remove it, or write it again")
    try:
        content = inputs.tried(found.path, lambda: _end_of(found.path))
    except OSError as error:
        said = str(error).splitlines()[0].rstrip(".")
        return Fault(found.path, "", "", f"it cannot be read ({said})", "make it readable, or take it out")
    try:
        metadata = pq.read_metadata(pa.BufferReader(content))
        digest = hashlib.blake2b(_footer_in(content), digest_size=16).hexdigest()
        return Footer(found, metadata.schema.to_arrow_schema(), metadata, digest)
    except (OSError, pa.ArrowException) as error:
        said = str(error).splitlines()[0].rstrip(".")
        rule = f"it is not a whole Parquet file ({said})"
        return Fault(found.path, "", "", rule, "remove it, or write it again")


def _end_of(path: str) -> bytes:
    """The footer and its length, or the whole of a file whose end is not one: Arrow says why."""
    with inputs.open_binary(path) as file:
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
