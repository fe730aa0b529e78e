"""Arrow IPC files and streams (`.arrow`, `.ipc`, `.arrows`) and Feather files, as plain tables.

In: files. Out: their tables with one schema; a column that is null-typed or missing in some of them has the
type it has in the others. Dictionary columns are written as their values, since codes are a file's own. A
file that is not whole, or of another schema, shows as a DataError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.feather

from god_ray.errors import DataError
from god_ray.ingest.fault import Fault, first_line, refuse
from god_ray.ingest.listing import Found
from god_ray.saying import Say, Ticker

_FEATHER_1 = b"FEA1"
_ARROW = b"ARROW1"


@dataclass
class ArrowFiles:
    files: Sequence[Found]
    say: Say

    def tables(self) -> Iterator[pa.Table]:
        schema = self._schema()
        for file in self.files:
            ticker = Ticker(f"converting {file.name}", file.size, self.say)
            done = 0
            for table in _tables(file):
                done += table.nbytes
                ticker.tick(min(done, file.size))
                yield as_schema(plain(table), schema)

    def _schema(self) -> pa.Schema:
        schema = pa.schema([])
        faults = []
        for file in self.files:
            mine = plain(next(_tables(file))).schema
            try:
                schema = pa.unify_schemas([schema, mine], promote_options="default")
            except pa.ArrowException as error:
                fix = "write all files with one schema"
                faults.append(Fault(file.path, "", "", first_line(error), fix))
        if faults:
            raise refuse(faults)
        return schema


def plain(table: pa.Table) -> pa.Table:
    """Without dictionaries, and without what pandas keeps beside the columns."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def as_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """All columns of the schema, those that are missing null."""
    return pa.concat_tables([schema.empty_table(), table], promote_options="default").select(schema.names)


def _tables(file: Found) -> Iterator[pa.Table]:
    """At least one, if only for its schema. Raises DataError."""
    with _whole(file), pa.memory_map(file.path) as source:
        start = source.read(len(_ARROW))
        source.seek(0)
        if start[:4] == _FEATHER_1:
            yield pyarrow.feather.read_table(file.path)
        elif start == _ARROW:
            reader = pa.ipc.open_file(source)
            yield reader.schema.empty_table()
            for index in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(index)])
        else:
            stream = pa.ipc.open_stream(source)
            yield stream.schema.empty_table()
            for batch in stream:
                yield pa.Table.from_batches([batch])


@contextmanager
def _whole(file: Found) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        rule = f"it is not a whole Arrow file ({first_line(error)})"
        raise _refused(file, rule) from error


def _refused(file: Found, rule: str) -> DataError:
    return refuse([Fault(file.path, "", "", rule, "remove it, or write it again")])
