"""Prepared copies: numbered Parquet parts below `<storage>/.prepared/<key>/`, written once and used again.

In: a key (what the copy is made from) and tables. Out: the paths of the parts. A copy is there when its
manifest is, which is written last; the same key gives the same bytes, so two that write one copy at once do
not hurt each other. Must not know what the rows mean. Storage that fails shows as UserError.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from god_ray.errors import UserError
from god_ray.ingest.fault import Fault, refuse
from god_ray.plan import MAX_FRAGMENT_ROWS
from god_ray.storage.store import Store, above, below, open_store, write_bytes

FORMAT = 1
"""Of the copies. Another number is another key: what an older god_ray made is left alone."""
FOLDER = ".prepared"
MANIFEST = "_copy.json"
GROUP_BYTES = 64 << 20
GROUPS_PER_PART = 64
Fill = Callable[[Path], object]


class Copy(NamedTuple):
    paths: tuple[str, ...]
    notes: tuple[str, ...]
    """What whoever made it found worth saying."""


def open_copies(storage: str) -> Store:
    return open_store(below(storage, FOLDER))


def key_of(made_from: Mapping[str, Any]) -> str:
    text = json.dumps({"format": FORMAT, **made_from}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def origin(path: str) -> str:
    """What the user knows: of a copy's part, the names of what that was made from; else the path."""
    folder, name = above(path)
    if f"/{FOLDER}/" not in folder or not name.startswith("part-"):
        return path
    try:
        made_from = json.loads(open_store(folder).read(MANIFEST))["made_from"]
    except (OSError, ValueError, KeyError, TypeError):  # only words are lost
        return path
    return str(made_from or path)


def find(copies: Store, key: str) -> Copy | None:
    """The copy, if it is there as a whole."""
    with _storage(copies):
        try:
            manifest = json.loads(copies.read(f"{key}/{MANIFEST}"))
            parts, notes = dict(manifest["parts"]), tuple(map(str, manifest["notes"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):  # not ours any more: it is made again
            return None
        there = copies.list(key)
    if any(there.get(f"{key}/{name}") != size for name, size in parts.items()):
        return None
    return Copy(tuple(below(copies.uri, f"{key}/{name}") for name in parts), notes)


def make(copies: Store, key: str, tables: Iterable[pa.Table], notes: list[str], made_from: str = "") -> Copy:
    """Write the copy. `notes` may be added to while `tables` is used up. Raises what `tables` raises."""
    with _storage(copies):
        parts = write_parts(tables, lambda name, fill: copies.write(f"{key}/{name}", fill))
    return seal(copies, key, parts, notes, made_from)


def keep(copies: Store, tables: Iterable[pa.Table], made_from: str) -> Copy:
    """A copy whose key is its content: written to scratch, then kept unless it is there already."""
    with tempfile.TemporaryDirectory(prefix="god_ray-") as scratch:
        names = write_parts(tables, lambda name, fill: fill(Path(scratch, name)))
        digests = {name: _digest(Path(scratch, name)) for name in names}
        key = key_of({"content": digests})
        found = find(copies, key)
        if found is not None:
            return found
        with _storage(copies):
            for name in names:
                copies.write(f"{key}/{name}", partial(shutil.copyfile, Path(scratch, name)))
        return seal(copies, key, names, [], made_from)


def seal(
    copies: Store, key: str, names: Sequence[str], notes: Sequence[str] = (), made_from: str = ""
) -> Copy:
    """All parts are there: from now on the copy is. made_from: what the user calls it, for errors."""
    with _storage(copies):
        there = copies.list(key)
        sizes = {name: there[f"{key}/{name}"] for name in names}
        said = {"format": FORMAT, "made_from": made_from, "parts": sizes, "notes": list(notes)}
        write_bytes(copies, f"{key}/{MANIFEST}", f"{json.dumps(said, indent=1)}\n".encode())
    return Copy(tuple(below(copies.uri, f"{key}/{name}") for name in names), tuple(notes))


def write_parts(tables: Iterable[pa.Table], write: Callable[[str, Fill], object]) -> list[str]:
    """The tables' rows in their order; where parts and row groups end follows from the rows alone."""
    names: list[str] = []
    groups = _regroup(iter(tables))
    for first in groups:

        def fill(path: Path, first: pa.Table = first) -> None:
            write_groups(chain([first], islice(groups, GROUPS_PER_PART - 1)), path)

        names.append(part_name(len(names)))
        write(names[-1], fill)
    return names


def part_name(number: int) -> str:
    return f"part-{number:05}.parquet"


def write_groups(groups: Iterable[pa.Table], path: Path) -> None:
    """One Parquet file, each table one row group."""
    writer = None
    try:
        for group in groups:
            if writer is None:
                writer = _writer(path, group.schema)
            writer.write_table(group, row_group_size=group.num_rows)
    finally:
        if writer is not None:
            writer.close()


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Raises DataError for types that Parquet does not have."""
    try:
        return pq.ParquetWriter(path, schema, write_page_checksum=True)
    except pa.ArrowNotImplementedError:
        rule, fix = "Parquet, in which a copy is kept, has no such type", "make it another type"
        raise refuse([Fault("", f.name, str(f.type), rule, fix) for f in schema if not _is_kept(f)]) from None


def _is_kept(field: pa.Field) -> bool:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except pa.ArrowNotImplementedError:
        return False
    return True


def _regroup(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of one size: a fragment's rows, or fewer where rows are wide; the last is what is left."""
    held: list[pa.Table] = []
    size, count = 0, 0
    for table in tables:
        if not table.num_rows:
            continue
        size = size or max(min(MAX_FRAGMENT_ROWS, GROUP_BYTES * table.num_rows // max(table.nbytes, 1)), 1)
        held.append(table)
        count += table.num_rows
        if count < size:
            continue
        whole = pa.concat_tables(held)
        full = count - count % size
        yield from (whole.slice(at, size) for at in range(0, full, size))
        held, count = [whole.slice(full)], count % size
    if count:
        yield pa.concat_tables(held)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@contextmanager
def _storage(copies: Store) -> Iterator[None]:
    """What the storage refuses, in words. FileNotFoundError of an object was dealt with before."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the prepared copy of the data below {copies.uri} cannot be had: {error}.",
            "Data that are not Parquet are converted once, beside the runs.",
            "make room there, or choose another storage.",
        ) from error
