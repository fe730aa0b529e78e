"""Looking at a Parquet file or folder for `god-ray init`: which column is the label, which are inputs.

In: a path, perhaps a label's name. Out: a `Look`: inputs with mean and spread, label, task, notes on all
guesses. Reads a sample, and the whole label column. What cannot be used is a
`DataError` that says what to do.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from god_ray.errors import DataError

SAMPLE_ROWS = 65_536
SAMPLE_GROUPS = 16
WHOLE_LABEL_ROWS = 5_000_000
LEAST_ROWS = 8
MOST_CLASSES = 1000
FEW_VALUES = 50  # an unnamed integer column with more distinct values is not taken for a label
LABEL_NAMES = ("label", "labels", "target", "targets", "y", "class", "outcome")
EVAL_WORDS = ("test", "eval", "val", "valid", "validation")
READERS = {
    ".csv": "import pyarrow.csv as r; t = r.read_csv({0!r})",
    ".tsv": "import pyarrow.csv as r; t = r.read_csv({0!r}, parse_options=r.ParseOptions(delimiter='\\t'))",
    ".json": "import pyarrow.json as r; t = r.read_json({0!r})",
    ".jsonl": "import pyarrow.json as r; t = r.read_json({0!r})",
    ".arrow": "import pyarrow.feather as r; t = r.read_table({0!r})",
    ".feather": "import pyarrow.feather as r; t = r.read_table({0!r})",
}


@dataclass(frozen=True)
class Input:
    name: str
    width: int  # numbers per row
    mean: float
    std: float


@dataclass
class Look:
    """What was found. `classes` are the label's values in order; empty for regression."""

    data: Path
    eval: Path | None
    num_rows: int
    sampled: int
    inputs: list[Input]
    label: str
    classes: list[int] | list[str] = field(default_factory=list)
    label_mean: float = 0.0
    label_std: float = 1.0
    notes: list[str] = field(default_factory=list)


def look_at(data: Path, label: str | None = None) -> Look:
    """Raises DataError if there is no Parquet, no usable column, or no such label."""
    files = _files(data)
    table, num_rows = _sample(files)
    values = {name: _values(table[name]) for name in table.column_names}
    name, why = _choose_label(values, label, data)
    look = Look(data, _eval_beside(data), num_rows, table.num_rows, [], name)
    look.notes.append(f"label: {name} ({why})")
    _describe_label(look, _whole_label(files, name, num_rows, values[name]))
    for column in table.column_names:
        if column != name:
            _consider(look, column, table.schema.field(column).type, values[column])
    if not look.inputs:
        raise DataError(
            f"{data} has no column to learn {name} from",
            " ".join(look.notes[2:]) or "It has no other column.",
            "inputs must be numbers or fixed-size lists of numbers, without nulls",
        )
    look.notes.append(f"inputs: {', '.join(i.name for i in look.inputs)}")
    return look


def _files(data: Path) -> list[Path]:
    if not data.exists():
        near = difflib.get_close_matches(data.name, [p.name for p in data.parent.glob("*")], n=1)
        raise DataError(
            f"{data} does not exist",
            "",
            f"did you mean {near[0]}?" if near else "name a Parquet file or a folder of them",
        )
    if data.suffix in READERS:
        out = str(data.with_suffix(".parquet"))
        read = READERS[data.suffix].format(str(data))
        raise DataError(
            f"{data} is not Parquet",
            "god_ray reads Parquet and does not convert other formats yet.",
            "convert it once:\n"
            f'  python -c "{read}; import pyarrow.parquet as p; p.write_table(t, {out!r})"\n'
            f"  then: god-ray init {out}",
        )
    files = sorted(data.rglob("*.parquet")) if data.is_dir() else [data]
    if not files:
        raise DataError(f"{data} holds no *.parquet file", "", "name the folder that has them")
    return files


def _sample(files: list[Path]) -> tuple[pa.Table, int]:
    """About SAMPLE_ROWS rows, spread over all (files are often sorted by label); and how many there are."""
    groups = [(path, g, rows) for path in files for g, rows in enumerate(_group_rows(path))]
    num_rows = sum(rows for _, _, rows in groups)
    if num_rows < LEAST_ROWS:
        raise DataError(
            f"{files[0] if len(files) == 1 else files[0].parent} has {num_rows} rows",
            f"A batch needs at least {LEAST_ROWS}: 4 lanes of 2 rows.",
            "name a file with more rows",
        )
    chosen = [groups[i] for i in np.unique(np.linspace(0, len(groups) - 1, SAMPLE_GROUPS).astype(int))]
    every = -(-sum(rows for _, _, rows in chosen) // SAMPLE_ROWS)
    parts = []
    for path, group, _ in chosen:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(SAMPLE_ROWS, row_groups=[group]):
                parts.append(pa.table(batch).take(np.arange(0, batch.num_rows, every)))
    try:
        return pa.concat_tables(parts), num_rows
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the files in {files[0].parent} differ in their columns", f"{error}", "name one"
        ) from error


def _group_rows(path: Path) -> list[int]:
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet", f"{error}", "name a Parquet file") from error
    return [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]


def _whole_label(files: list[Path], name: str, num_rows: int, sample: Any) -> Any:
    """All values of the label where that is cheap, so that no class is missed; else the sample's."""
    if num_rows > WHOLE_LABEL_ROWS:
        return sample
    return _values(pa.concat_tables(pq.read_table(path, columns=[name]) for path in files)[name])


def _values(column: pa.ChunkedArray) -> Any:
    """Numbers as a numpy array (rows, or rows x width), texts as a list; None for what cannot be used."""
    array = column.combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        return None
    if pa.types.is_fixed_size_list(array.type) and _is_number(array.type.value_type):
        flat = array.flatten()
        return None if flat.null_count else _numpy(flat).reshape(len(array), array.type.list_size)
    if _is_number(array.type):
        return _numpy(array)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return array.to_pylist()
    return None


def _numpy(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _choose_label(values: dict[str, Any], wanted: str | None, data: Path) -> tuple[str, str]:
    if wanted is not None:
        if values.get(wanted) is None:
            near = difflib.get_close_matches(wanted, values, n=1)
            raise DataError(
                f"--label {wanted}: "
                + ("it has nulls or is no number or text" if wanted in values else "no such column"),
                f"Columns: {', '.join(values)}.",
                f"did you mean {near[0]}?" if near and near[0] != wanted else "name another column",
            )
        return wanted, "as told"
    scalars = [n for n, v in values.items() if v is not None and np.ndim(v) == 1]
    for name in scalars:
        word = name.lower().rsplit("_", 1)[-1]
        if word in LABEL_NAMES:
            return name, "by its name"
    numbers = [n for n in scalars if isinstance(values[n], np.ndarray) and not _identifies(n, values[n])]
    if scalars and isinstance(values[scalars[-1]], list) and 2 <= len(set(values[scalars[-1]])) <= FEW_VALUES:
        return scalars[-1], "a guess: the last column, texts with few different values"
    for name in reversed(numbers):
        if values[name].dtype.kind in "iub" and 2 <= len(np.unique(values[name])) <= FEW_VALUES:
            return name, "a guess: the last integer column with few different values"
    for name in reversed(numbers):
        if values[name].dtype.kind == "f":
            return name, "a guess: the last column of decimal numbers"
    raise DataError(
        f"{data} has no column that could be a label",
        f"Columns: {', '.join(values)}.",
        "name it: --label COLUMN",
    )


def _describe_label(look: Look, values: Any) -> None:
    if values is None:
        raise DataError(
            f"the label {look.label} has nulls",
            "A row without a label cannot be learned from.",
            "remove those rows, or name another column with --label",
        )
    if isinstance(values, list):
        look.classes = sorted(set(values))
        look.notes.append(
            f"task: classification, {len(look.classes)} classes; recipe.py:encode numbers the texts"
        )
        return
    if values.ndim > 1:
        raise DataError(
            f"the label {look.label} is a list of {values.shape[1]} numbers", "", "name one with --label"
        )
    distinct = np.unique(values)
    if len(distinct) <= (FEW_VALUES if values.dtype.kind == "f" else MOST_CLASSES) and np.all(
        distinct % 1 == 0
    ):
        look.classes = [int(v) for v in distinct]
        look.notes.append(f"task: classification, {len(distinct)} classes")
    else:
        look.label_mean, look.label_std = _spread(values)
        look.notes.append("task: regression")


def _consider(look: Look, name: str, kind: pa.DataType, values: Any) -> None:
    """Take the column as an input, or note why not."""
    if not isinstance(values, np.ndarray):
        numbers = _is_number(kind) or pa.types.is_fixed_size_list(kind)
        reason = "it has nulls; fill them first" if numbers else f"{kind} is no number; encode it first"
    elif not np.all(np.isfinite(values)):
        reason = "it has NaN or infinite values; fill them first"
    elif values.ndim == 1 and _identifies(name, values):
        reason = "it identifies rows"
    elif values.size and values.min() == values.max():
        reason = "it is the same in every row"
    else:
        mean, std = _spread(values)
        look.inputs.append(Input(name, values.shape[1] if values.ndim > 1 else 1, mean, std))
        return
    look.notes.append(f"left out: {name} ({reason})")


def _identifies(name: str, values: Any) -> bool:
    if values.dtype.kind not in "iu":
        return False
    if re.search(r"(^|_)(id|idx|index|row|level_0__)$", name.lower()):
        return True
    return len(values) > FEW_VALUES and bool(np.all(np.diff(values.astype(np.int64)) > 0))


def _spread(values: Any) -> tuple[float, float]:
    numbers = values.astype(np.float64)
    mean, std = float(numbers.mean()), float(numbers.std())
    return float(f"{mean:.6g}"), float(f"{std:.6g}") or 1.0


def _eval_beside(data: Path) -> Path | None:
    for word in EVAL_WORDS:
        beside = data.with_name(data.name.replace("train", word))
        if beside != data and beside.exists():
            return beside
    return None
