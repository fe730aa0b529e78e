"""`file.py:function`: rows that a function of the user's returns, as a prepared copy.

In: the reference. Out: the copy, whose key is its content, so that a resumed run finds the same rows or is
refused. Returned may be a pyarrow.Table, a pandas frame, a Hugging Face dataset, a ray.data.Dataset (in its
order) or a map-style torch Dataset; anything else is refused, saying what to return instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from god_ray.errors import DataError
from god_ray.ingest.sources import copies, items
from god_ray.ingest.sources.arrowipc import plain
from god_ray.saying import Say, Ticker
from god_ray.storage.store import Store
from god_ray.userfile import UserFile

RETURN = (
    "return a pyarrow.Table, a pandas frame, a Hugging Face dataset, a ray.data.Dataset or a map-style "
    "torch Dataset"
)
_made: dict[tuple[str, str, str], copies.Copy] = {}
"""By (storage, reference, the file's content): called once in a process."""


def prepared(reference: str, store: Store, say: Say) -> copies.Copy:
    """Call the function and keep its rows. Raises RecipeError with the user's line, or DataError."""
    path, _, name = reference.rpartition(":")
    file, function = UserFile.load(path, name)
    file.check_arguments(function, ())
    with open(path, "rb") as source:
        known = (store.uri, reference, hashlib.sha256(source.read()).hexdigest())
    if known not in _made:
        say(f"calling {name}() of {path} for its rows")
        with file.blame(f"{name}()"):
            returned = function()
            tables = _tables(returned, f"{file.where(function)}: {name}()", Ticker(name, 0, say, "rows", 1))
            _made[known] = copies.keep(store, tables, reference)
    return _made[known]


def _tables(returned: Any, subject: str, ticker: Ticker) -> Iterator[pa.Table]:
    """By what it is; told by its names where the package need not be installed."""
    homes = _homes(returned)
    if isinstance(returned, pa.Table):
        return iter([plain(returned)])
    if isinstance(returned, pa.RecordBatch):
        return iter([plain(pa.Table.from_batches([returned]))])
    if "pandas.DataFrame" in homes:
        return iter([_of_pandas(returned, subject)])
    if "datasets.Dataset" in homes:
        return _of_hugging_face(returned)
    if hasattr(returned, "iter_batches") and type(returned).__module__.startswith("ray.data"):
        return _of_ray(returned)
    if homes & {"torch.IterableDataset", "datasets.IterableDataset"} or not items.is_map_style(returned):
        raise _refused(returned, subject)
    return items.tables(returned, subject, ticker)


def _homes(returned: Any) -> set[str]:
    """Its class and those above, each with the package that it is from."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(returned).__mro__}


def _refused(returned: Any, subject: str) -> DataError:
    kind = type(returned).__name__
    if "datasets.DatasetDict" in _homes(returned):
        return DataError(
            f"{subject} returned a {kind}.", "It holds several data sets.", 'return one: dataset["train"]'
        )
    if hasattr(returned, "__iter__") or hasattr(returned, "__next__"):
        return DataError(
            f"{subject} returned a {kind}, which can only be gone through.",
            "Each row is used exactly once in every epoch, in an order of its own: rows must have numbers.",
            f"{RETURN}; what fits into memory: pyarrow.Table.from_pylist(list(rows))",
        )
    return DataError(f"{subject} returned a {kind}.", "It must return rows.", RETURN)


def _of_pandas(frame: Any, subject: str) -> pa.Table:
    named = [name for name in frame.index.names if name is not None]
    if named:
        raise DataError(
            f"{subject} returned a frame whose index is {', '.join(map(str, named))}.",
            "Rows are made of columns; the index would be lost.",
            "return frame.reset_index()",
        )
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        said = " ".join(str(part) for part in error.args)
        fix = "give each column values of one type"
        raise DataError(f"{subject} returned a frame that cannot be kept: {said}.", "", fix) from error
    return plain(table.replace_schema_metadata(None))


def _of_hugging_face(dataset: Any) -> Iterator[pa.Table]:
    """In its order, also after select and shuffle."""
    as_arrow = dataset.with_format("arrow")
    for start in range(0, len(dataset), items.ROWS):
        table = as_arrow[start : start + items.ROWS]
        yield plain(table.replace_schema_metadata(None))


def _of_ray(dataset: Any) -> Iterator[pa.Table]:
    dataset.context.execution_options.preserve_order = True
    for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        if block.num_rows:
            yield plain(block.replace_schema_metadata(None))
