"""The door to a data set: what the spec names, as a `ParquetSource`.

In: paths (Parquet, CSV, TSV, JSON Lines, Arrow, Feather: a file, folder, glob or list of one kind) or
`file.py:function`; where copies are kept. Out: the opened source; over Parquet itself, or over a prepared
copy, made now or found. All that is wrong with the data shows as one DataError that names the user's files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from god_ray.errors import DataError, GodRayError
from god_ray.ingest.fault import Fault, refuse
from god_ray.ingest.listing import Found, list_files
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.sources import copies, function
from god_ray.ingest.sources.arrowipc import ArrowFiles
from god_ray.ingest.sources.delimited import Delimited
from god_ray.ingest.sources.jsonlines import JsonLines
from god_ray.ingest.sources.progress import stamp
from god_ray.ingest.sources.texttypes import TYPES
from god_ray.saying import Say, silent
from god_ray.spec.paths import is_function

_KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}
TEXT = ("csv", "tsv", "jsonl")


@dataclass(frozen=True)
class Conversion:
    """Where prepared copies are kept, what the spec says of types, and who is told."""

    storage: str
    types: Mapping[str, str] = field(default_factory=dict)
    nulls: Sequence[str] = ()
    say: Say = silent
    """Told how far a long conversion is."""
    note: Say = silent
    """Told what looks unwise about the data."""


def open_source(
    paths: Sequence[str],
    columns: Sequence[str] | None,
    conversion: Conversion,
    *,
    allow_any: bool = False,
    like: ParquetSource | None = None,
) -> ParquetSource:
    """See `ParquetSource.open`. like: the training set, whose types an evaluation set of texts must have."""
    functions = [path for path in paths if is_function(path)]
    if functions:
        copy = _of_function(functions, paths, conversion)
    elif (kind := _kind(files := list_files(list(paths)))) == "parquet":
        if conversion.types:
            raise DataError(
                "data.types is given, and the data are Parquet.",
                "Parquet files say themselves which type a column has.",
                "remove data.types; data.preprocess can cast columns.",
            )
        return ParquetSource.open(paths, columns, allow_any=allow_any)
    else:
        copy = _of_files(files, kind, conversion, like)
    for note in copy.notes:
        conversion.note(note)
    if not copy.paths:
        raise DataError(f"{', '.join(paths)}: there are no rows.", "", "point at data with rows")
    try:
        return ParquetSource.open(copy.paths, columns, allow_any=allow_any)
    except DataError as error:
        raise _renamed(error, lambda _: ", ".join(paths)) from error


def _of_function(functions: list[str], paths: Sequence[str], conversion: Conversion) -> copies.Copy:
    if len(paths) > 1:
        raise DataError(
            f"{functions[0]} is one of {len(paths)} entries.",
            "A function's rows are a data set of their own.",
            "name the function alone; it may join what it reads.",
        )
    return function.prepared(functions[0], copies.open_copies(conversion.storage), conversion.say)


def _of_files(
    files: Sequence[Found], kind: str, conversion: Conversion, like: ParquetSource | None
) -> copies.Copy:
    types = {name: TYPES[word] for name, word in conversion.types.items()} if kind in TEXT else {}
    if like is not None and kind in TEXT:
        types = _known(like.schema, kind) | types
    nulls = list(conversion.nulls) if kind in ("csv", "tsv") else []
    made_from = {
        "kind": kind,
        "files": (before := stamps(files)),
        "types": {name: str(given) for name, given in types.items()},
        "nulls": nulls,
    }
    store, key = copies.open_copies(conversion.storage), copies.key_of(made_from)
    found = copies.find(store, key)
    if found is not None:
        return found
    if faults := [_empty(file) for file in files if not file.size]:
        raise refuse(faults)
    notes: list[str] = []
    if kind == "arrow":
        tables = ArrowFiles(files, conversion.say).tables()
    elif kind == "jsonl":
        tables = JsonLines(files, types, like is None, conversion.say).tables()
    else:
        tables = Delimited(files, kind, types, like is None, nulls, conversion.say, notes).tables()
    return copies.make(store, key, steady(tables, files, before), notes, made_from=_named(files))


def stamps(files: Sequence[Found]) -> list[list[object]]:
    return [[file.name, *stamp(file.path)] for file in files]


def steady(
    tables: Iterator[pa.Table], files: Sequence[Found], before: list[list[object]]
) -> Iterator[pa.Table]:
    """The tables. Raises DataError if the files are not what they were `before` these were read."""
    failed: Exception | None = None
    try:
        yield from tables
    except (GodRayError, ValueError, OSError) as error:  # ValueError: values that the first look did not meet
        failed = error
    for file, then, now in zip(files, before, stamps(files), strict=True):
        if then != now:
            raise DataError(
                f"{file.path} has changed while it was read",
                "A run trains on one state of its data.",
                "start again once it is written",
                file=file.path,
            ) from failed
    if failed is not None:
        raise failed


def _known(schema: pa.Schema, kind: str) -> dict[str, pa.DataType]:
    """The types that texts can be converted to; JSON has lists and objects, too."""
    simple = (*TYPES.values(), pa.null())
    types = {f.name: pa.string() if f.type == pa.large_string() else f.type for f in schema}
    return {name: given for name, given in types.items() if kind == "jsonl" or given in simple}


def _empty(file: Found) -> Fault:
    return Fault(file.path, "", "", "the file is empty (0 bytes)", "remove it, or write it again")


def _kind(files: Sequence[Found]) -> str:
    """One for all files; what is not known otherwise is taken for Parquet, which says what is wrong."""
    kinds = Counter(_kind_of(file.path) for file in files)
    if len(kinds) == 1:
        return next(iter(kinds))
    told = ", ".join(
        f"{next(f.path for f in files if _kind_of(f.path) == kind)} ({kind})" for kind in sorted(kinds)
    )
    raise DataError(
        f"the files are of {len(kinds)} kinds: {told}.",
        "The files of a data set are of one kind, told by their endings.",
        "name those that are meant, for example with a pattern: data/*.csv",
    )


def _kind_of(path: str) -> str:
    name = path.lower()
    gzipped = name.endswith(".gz")
    kind = _KINDS.get(os.path.splitext(name.removesuffix(".gz"))[1], "parquet")
    return kind if not gzipped or kind in TEXT else "parquet"


def require_tensors(source: ParquetSource, columns: Sequence[str]) -> None:
    """Raises DataError if some of the columns cannot be tensors: by their type, or for nulls in them."""
    try:
        ParquetSource.open(source.manifest.files, columns)
    except DataError as error:
        raise _renamed(error, copies.origin) from error


def _renamed(error: DataError, name_of: Callable[[str], str]) -> DataError:
    """The same faults, of what the user knows: a copy's parts are nobody's files."""
    faults = error.data.get("faults")
    if not faults:
        return error
    return refuse(list(dict.fromkeys(replace(fault, file=name_of(fault.file)) for fault in faults)))


def _named(files: Sequence[Found]) -> str:
    return files[0].name if len(files) == 1 else f"{files[0].name} to {files[-1].name}"
