"""CSV and TSV files, with a header, as tables of typed columns.

In: files, what the spec says of types and of texts that mean null. Out: the columns' types, told from every
row of every file, then the tables. Read twice, never held. Rows of another width, names given twice, bytes
that are not UTF-8 and values that are not of their type show as one DataError with file, line and fix.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, TextIO

import pyarrow as pa
import pyarrow.csv

from god_ray.errors import DataError
from god_ray.ingest.fault import Fault, refuse
from god_ray.ingest.listing import Found
from god_ray.ingest.sources.progress import bytes_of, reading
from god_ray.ingest.sources.texttypes import ColumnType, convert
from god_ray.saying import Say, Ticker

BLOCK_BYTES = 8 << 20
DELIMITERS = {"csv": ",", "tsv": "\t"}
_QUOTE_FIX = "look for a quote that is never closed, or write the file again"
_TYPE_FIX = "correct the value, or the type in data.types"


@dataclass
class Delimited:
    """`types`: those that are given; the others are told from the values. `closed`: each of them must be
    there. `nulls`: texts that mean null.
    """

    files: Sequence[Found]
    kind: str
    types: Mapping[str, pa.DataType]
    closed: bool
    nulls: Sequence[str]
    say: Say
    notes: list[str]

    def tables(self) -> Iterator[pa.Table]:
        """All rows. Raises DataError with every fault, before the first table."""
        schema = self._schema()
        for file in self.files:
            for _, texts in self._batches(file, "converting"):
                yield pa.table([convert(texts[n], schema.field(n).type) for n in schema.names], schema=schema)

    def _schema(self) -> pa.Schema:
        headers = [self._header(file.path) for file in self.files]
        faults = [fault for header in headers for fault in header if isinstance(fault, Fault)]
        if faults:
            raise refuse(faults)
        first = [str(name) for name in headers[0]]
        faults += _other_columns(self.files, headers)
        absent = [name for name in self.types if name not in first]
        if self.closed:
            faults += [_no_column(self.files[0].path, name, first) for name in absent]
        if faults:
            raise refuse(faults)
        for file in self.files:
            found = _lone_return(file.path), _wrong_quote(file.path, DELIMITERS[self.kind])
            faults += [fault for fault in found if fault]
        if faults:
            raise refuse(faults)
        self._note_header(first)
        seen = {name: ColumnType() for name in first if name not in self.types}
        for file in self.files:
            faults += self._look(file, seen)
        if faults:
            raise refuse(faults)
        self.notes += [note for name, column in seen.items() if (note := column.note(name))]
        return pa.schema([(name, self.types.get(name) or seen[name].kind) for name in first])

    def _look(self, file: Found, seen: dict[str, ColumnType]) -> list[Fault]:
        """Tell `seen` every text; a fault for each column's first value that is not of its given type."""
        faults: dict[str, Fault] = {}
        given = {name: kind for name, kind in self.types.items() if name in self._header(file.path)}
        for first_row, texts in self._batches(file, "reading"):
            for name, column in seen.items():
                column.see(texts[name], first_row)
            for name, kind in given.items():
                try:
                    if name not in faults:
                        convert(texts[name], kind)
                except ValueError as error:
                    at, text = error.args
                    where = f"{file.path}:{self._line(file.path, first_row + at)}"
                    faults[name] = Fault(where, name, str(kind), f"{text!r} is no such value", _TYPE_FIX)
        return list(faults.values())

    def _batches(self, file: Found, doing: str) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """(number of the first row, texts by column)."""
        names = [str(name) for name in self._header(file.path)]
        row = 0
        with reading(file.path) as (content, told):
            ticker = Ticker(f"{doing} {file.name}", file.size, self.say)
            try:
                for batch in self._open(content, names):
                    ticker.tick(told())
                    yield row, dict(zip(names, batch.columns, strict=True))
                    row += batch.num_rows
            except pa.ArrowInvalid as error:
                raise self._explained(file.path, len(names), str(error)) from error

    def _open(self, content: pa.NativeFile, names: Sequence[str]) -> pyarrow.csv.CSVStreamingReader:
        return pyarrow.csv.open_csv(
            content,
            pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES),
            pyarrow.csv.ParseOptions(delimiter=DELIMITERS[self.kind], newlines_in_values=True),
            pyarrow.csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                null_values=list(self.nulls),
                strings_can_be_null=bool(self.nulls),
                quoted_strings_can_be_null=False,
            ),
        )

    def _header(self, path: str) -> list[str | Fault]:
        """The names, or what is wrong with them."""
        try:
            with _text(path) as text:
                names = next(csv.reader(text, delimiter=DELIMITERS[self.kind]), [])
        except UnicodeDecodeError:
            return [_not_utf8(path)]
        except csv.Error as error:
            return [Fault(f"{path}:1", "", "", f"it is no header ({error})", _QUOTE_FIX)]
        if not names:
            fix = "write the names of the columns into its first line"
            return [Fault(path, "", "", "it has no header", fix)]
        faults: list[str | Fault] = []
        for name in sorted({name for name in names if names.count(name) > 1 and name}):
            rule = f"{names.count(name)} columns have this name"
            faults.append(Fault(f"{path}:1", name, "", rule, "rename or drop all but one"))
        if "" in names:
            rule = f"column {names.index('') + 1} has no name"
            faults.append(Fault(f"{path}:1", "", "", rule, "name it (pandas: to_csv(..., index=False))"))
        return faults or list(names)

    def _note_header(self, names: Sequence[str]) -> None:
        path = self.files[0].path
        if any(_is_number(name) for name in names):
            told = ", ".join(names[:5])
            self.notes.append(f"{path}: the first line ({told}) looks like values; it is read as the header")
        if len(names) == 1 and any(mark in names[0] for mark in ";|\t,"):
            self.notes.append(f"{path}: one column, {names[0]!r}: are other marks between its columns?")

    def _explained(self, path: str, width: int, said: str) -> DataError:
        """What Arrow met, with the line."""
        fault = _not_utf8(path) if "UTF8" in said or "UTF-8" in said else self._ragged(path, width)
        if fault is None:
            fault = Fault(path, "", "", said.splitlines()[0].rstrip("."), _QUOTE_FIX)
        return refuse([fault])

    def _ragged(self, path: str, width: int) -> Fault | None:
        with _text(path, errors="replace") as text, suppress(csv.Error):  # a field without end
            rows = csv.reader(text, delimiter=DELIMITERS[self.kind])
            for row in rows:
                if row and len(row) != width:
                    rule = f"{len(row)} values, and the header names {width} columns"
                    fix = "give every row a value for each column; one that holds the mark needs quotes"
                    return Fault(f"{path}:{rows.line_num}", "", "", rule, fix)
        return None

    def _line(self, path: str, row: int) -> int:
        """In which line of the file that row ends."""
        with _text(path, errors="replace") as text, suppress(csv.Error):
            rows = csv.reader(text, delimiter=DELIMITERS[self.kind])
            filled = (rows.line_num for values in rows if values)
            next(filled)
            return next((line for index, line in enumerate(filled) if index == row), 0)
        return 0


@contextmanager
def _text(path: str, errors: str = "strict") -> Iterator[TextIO]:
    with bytes_of(path) as raw:
        yield io.TextIOWrapper(raw, encoding="utf-8-sig", errors=errors, newline="")


def _not_utf8(path: str) -> Fault:
    with bytes_of(path) as raw:
        for number, line in enumerate(raw, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                rule = f"byte {line[error.start]:#04x} is not UTF-8 text"
                return Fault(f"{path}:{number}", "", "", rule, "save the file as UTF-8")
    return Fault(path, "", "", "it is not UTF-8 text", "save the file as UTF-8")


def _lone_return(path: str) -> Fault | None:
    """A carriage return inside a row and outside quotes, in a file whose rows end otherwise.

    Arrow takes it for the end of a row, others for a character of the value.
    """
    with bytes_of(path) as content:
        if not _has_lone_return(content):
            return None
        content.seek(0)
        inside = False
        for number, line in enumerate(content, start=1):
            body = line.removesuffix(b"\n").removesuffix(b"\r")
            if b"\r" in body and line.endswith(b"\n"):
                bare = b"".join(body.split(b'"')[inside::2])
                if b"\r" in bare:
                    fix = "put quotes around the value, or write the file with one kind of line ends"
                    return Fault(f"{path}:{number}", "", "", "a carriage return inside a row", fix)
            inside ^= body.count(b'"') % 2 == 1
    return None


def _wrong_quote(path: str, delimiter: str) -> Fault | None:
    """A quote that is never closed, or text after one that is: Arrow would go on with another value."""
    with bytes_of(path) as content:
        if not any(b'"' in block for block in iter(partial(content.read, BLOCK_BYTES), b"")):
            return None
    limit = csv.field_size_limit(sys.maxsize)
    try:
        with _text(path, errors="replace") as text:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            line = 0
            try:
                for _ in rows:
                    line = rows.line_num
            except csv.Error as error:
                fix = "close the quote; quotes inside a quoted value are doubled"
                return Fault(f"{path}:{line + 1}", "", "", f"a quote is misplaced ({error})", fix)
    finally:
        csv.field_size_limit(limit)
    return None


def _has_lone_return(content: BinaryIO) -> bool:
    last = b""
    while block := last + content.read(BLOCK_BYTES):
        last = b"\r" if block.endswith(b"\r") and len(block) > 1 else b""
        body = block.removesuffix(last)
        if body.count(b"\r") > body.count(b"\r\n"):
            return True
    return False


def _other_columns(files: Sequence[Found], headers: Sequence[Sequence[object]]) -> Iterator[Fault]:
    first = headers[0]
    for file, header in zip(files, headers, strict=True):
        fix = "give all files the same columns, or name the files that have them"
        for name in (name for name in first if name not in header):
            yield Fault(f"{file.path}:1", str(name), "", f"it is missing; {files[0].path} has it", fix)
        for name in (name for name in header if name not in first):
            yield Fault(f"{file.path}:1", str(name), "", f"{files[0].path} has no such column", fix)


def _no_column(path: str, name: str, names: Sequence[str]) -> Fault:
    rule = "data.types names it, and there is no such column"
    return Fault(path, name, "", rule, f"the columns are {', '.join(names)}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
