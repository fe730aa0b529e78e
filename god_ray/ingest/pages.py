"""Reading all pages of a set before it is trained on: damage and nulls that no footer tells.

In: a source. Out: `Fault`s, each with file, column and row group, all of them. Rows are read as in training,
a fragment at a time, and dropped. Must not know specs. Nothing is raised for what a file can be blamed for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from god_ray.errors import DataError
from god_ray.ingest.columns import describe
from god_ray.ingest.fault import Fault
from god_ray.ingest.parquet import ParquetSource, Piece


@dataclass
class Pages:
    """What was read."""

    faults: list[Fault] = field(default_factory=list)
    decoded_bytes: int = 0


def read_pages(source: ParquetSource, tick: Callable[[int], object] = lambda done: None) -> Pages:
    """Read everything once; `tick` is told how many rows were.

    Checksums are verified where the writer left any.
    """
    manifest, done, pages = source.manifest, 0, Pages()
    pieces = (source.piece(f, 0, int(manifest.rows[f])) for f in range(manifest.num_fragments))
    for _, group in groupby(pieces, lambda piece: (piece.path, piece.group)):
        together = list(group)
        try:
            for piece in together:
                pages.decoded_bytes += source.reader.read(piece).nbytes
                done += piece.rows
                tick(done)
        except DataError as error:
            pages.faults += list(_by_column(source, together)) or [_fault(together[0], error)]
    return pages


def _by_column(source: ParquetSource, pieces: Sequence[Piece]) -> Iterator[Fault]:
    """What is wrong with this row group: an error does not always say in which column it came up."""
    for column in source.schema:
        converted = tuple(each for each in source.reader.converted if each.name == column.name)
        reader = replace(source.reader, columns=(column.name,), converted=converted)
        try:
            for piece in pieces:
                reader.read(piece)
        except DataError as error:
            yield replace(_fault(pieces[0], error), column=column.name, type=describe(column))


def _fault(piece: Piece, error: DataError) -> Fault:
    if "rule" in error.data:
        return Fault(piece.path, "", "", error.data["rule"], error.fix)
    said = str(error.__cause__ or error.what).splitlines()[0].rstrip(".")
    rule = f"row group {piece.group} is damaged ({said})"
    return Fault(piece.path, "", "", rule, "restore the file, or write it again")
