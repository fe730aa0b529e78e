"""Reading ranges of rows out of Parquet row groups, with bounded memory and few open files.

In: a path, a row group, a range of its rows. Out: an Arrow table. A row group is decoded front to back in
batches, never whole, and a reader that already stands before the wanted range is used on: reading a large
group in order costs one pass. Must not know plans, Ray or global row numbers. Failures are `DataError`s that
name the file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from god_ray.errors import DataError
from god_ray.ingest.fault import first_line
from god_ray.plan import MAX_FRAGMENT_ROWS
from god_ray.storage import inputs
from god_ray.storage.store import is_remote

MAX_OPEN = 32
"""Per thread. A ParquetFile must not be read by two threads at once."""
MAX_TEXT_BYTES = 1 << 30
"""Of one column in one range: a dictionary of long values, often used, decodes to any size."""
_BUFFER_BYTES = 1 << 20
"""Of each column. Without, a column's part of a row group is in memory as a whole, at the same speed."""
_SHORT_BYTES = 16
"""Text that takes less of the file per value is stored as a dictionary, and is read as one."""


class _OpenGroup:
    """One row group being decoded, from some row on."""

    def __init__(self, file: pq.ParquetFile, group: int, columns: Sequence[str]) -> None:
        self._batches = file.iter_batches(
            batch_size=MAX_FRAGMENT_ROWS, row_groups=[group], columns=list(columns), use_threads=False
        )
        self._batch: pa.RecordBatch | None = None
        self.start = 0
        """First row of the batch at hand: what lies before can't be read any more."""

    def take(self, lo: int, hi: int) -> list[pa.RecordBatch]:
        """Rows [lo, hi), lo >= start; fewer if the group ends early."""
        parts = []
        while lo < hi:
            if self._batch is None or lo >= self.start + len(self._batch):
                if not self._advance():
                    break
                continue
            end = min(hi, self.start + len(self._batch))
            part = self._batch.slice(lo - self.start, end - lo)
            parts.append(part)
            lo += len(part)
        return parts

    def _advance(self) -> bool:
        self.start += len(self._batch) if self._batch is not None else 0
        self._batch = next(self._batches, None)
        return self._batch is not None


class _OpenFile:
    def __init__(self, path: str) -> None:
        self._path = path
        remote = is_remote(path)  # there many small requests would take long
        source = inputs.open_binary(path) if remote else path
        metadata = pq.read_metadata(source)
        self._file = pq.ParquetFile(
            source,
            metadata=metadata,
            read_dictionary=_stored_as_codes(metadata),
            pre_buffer=remote,
            buffer_size=0 if remote else _BUFFER_BYTES,
            page_checksum_verification=True,
        )
        self._at: tuple[int, tuple[str, ...]] = (-1, ())
        self._group: _OpenGroup | None = None

    def read(self, group: int, lo: int, hi: int, columns: Sequence[str]) -> pa.Table:
        wanted = (group, tuple(columns))
        if self._group is None or self._at != wanted or lo < self._group.start:
            self._group, self._at = _OpenGroup(self._file, group, columns), wanted
        parts = self._group.take(lo, hi)
        if hi >= self._file.metadata.row_group(group).num_rows:
            self._group = None  # read to the end: keep no decoder and no batch
        if not parts:
            return pa.table({})
        table = pa.Table.from_batches(parts).select(list(columns))
        for at, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type) and _is_text(field.type.value_type):
                if (size := _text_bytes(table.column(at))) > MAX_TEXT_BYTES:
                    raise _too_large(self._path, field, size, f"rows {lo} to {hi} of row group {group}")
                values = table.column(at).cast(field.type.value_type)
                table = table.set_column(at, field.with_type(values.type), values)
        return table

    def close(self) -> None:
        self._group = None
        self._file.close(force=True)


def _stored_as_codes(metadata: pq.FileMetaData) -> list[str]:
    """Columns of text with few distinct values: their size is known before they are decoded, and it is
    quicker."""
    texts = [
        leaf
        for leaf in range(metadata.num_columns)
        if (column := metadata.schema.column(leaf)).physical_type == "BYTE_ARRAY"
        and column.max_repetition_level == 0
        and column.path == column.name
    ]
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)] if texts else []
    return [
        metadata.schema.column(leaf).name
        for leaf in texts
        if any(
            (chunk := group.column(leaf)).has_dictionary_page
            and chunk.total_uncompressed_size < _SHORT_BYTES * chunk.num_values
            for group in groups
        )
    ]


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _text_bytes(codes: pa.ChunkedArray) -> int:
    """Of the values."""
    lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in codes.chunks)
    return sum(pc.sum(each).as_py() or 0 for each in lengths)


def _too_large(path: str, field: pa.Field, size: int, rows: str) -> DataError:
    rule = f"{rows} decode to {size / 1e9:.1f} GB, above the {MAX_TEXT_BYTES / 1e9:.1f} GB of one read"
    return DataError(
        f"{path}: column {field.name}: {rule}",
        "The file holds few long values and says how often each is used.",
        "drop the column (data.columns), or write smaller row groups",
        file=path,
        column=field.name,
        rule=rule,
    )


class _OpenFiles(threading.local):
    """The files this thread read last. Kept while their size and time of change stay the same."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, int, int], _OpenFile] = OrderedDict()

    def get(self, path: str, size: int) -> _OpenFile:
        now = inputs.stat(path)
        if now.size != size:
            raise DataError(
                f"{path} has changed: {now.size} bytes, {size} when it was listed",
                "Rows are counted once, when the run starts.",
                "restore the file, or start a new run",
                file=path,
            )
        key = (path, size, now.changed_ns)
        if key not in self._open:
            while len(self._open) >= MAX_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[key] = _OpenFile(path)
        self._open.move_to_end(key)
        return self._open[key]

    def forget(self, path: str) -> None:
        """Close it: after a failure a decoder may stand anywhere."""
        for key in [key for key in self._open if key[0] == path]:
            self._open.pop(key).close()


_files = _OpenFiles()


def read_range(path: str, size: int, group: int, lo: int, hi: int, columns: Sequence[str]) -> pa.Table:
    """Rows [lo, hi) of a row group; `size`: the file's bytes when it was listed."""
    with _naming(path):
        table = inputs.tried(path, lambda: _read(path, size, group, lo, hi, columns))
    if table.num_rows != hi - lo:
        raise DataError(
            f"{path}: row group {group} holds fewer rows than its footer says",
            f"Rows {lo} to {hi} were wanted, {table.num_rows} were there.",
            "write the file again",
            file=path,
        )
    return table


def _read(path: str, size: int, group: int, lo: int, hi: int, columns: Sequence[str]) -> pa.Table:
    try:
        return _files.get(path, size).read(group, lo, hi, columns)
    except (OSError, pa.ArrowException):
        _files.forget(path)  # a decoder may stand anywhere
        raise


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read: {first_line(error)}",
            "It is damaged, or gone, or not readable from this machine.",
            "restore the file and resume the run",
            file=path,
        ) from error
