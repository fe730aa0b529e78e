"""Writing files of odd kinds, and what becomes of them: as tensors, in a collate, in `check`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from small_runs import project
from torch import Tensor

from god_ray.ingest.feed import open_feed
from god_ray.ingest.parquet import ParquetSource
from god_ray.plan import DataPlan
from god_ray.runtime.check import check

KEEP = "import pyarrow\n\ndef keep(table):\n    return table\n"


def put(path: Path, columns: Mapping[str, object] | pa.Table, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
    pq.write_table(table, path, **options)
    return path


def files(folder: Path, *each: Mapping[str, object] | pa.Table) -> Path:
    """a.parquet, b.parquet, ..."""
    for name, columns in zip("abcdef", each, strict=False):
        put(folder / f"{name}.parquet", columns)
    return folder


def tensors(data: Path, columns: Sequence[str] | None = None) -> dict[str, Tensor]:
    """All rows in file order as a recipe gets them, the same in both kinds of feed."""
    source = ParquetSource.open([str(data)], columns)
    whole, windows = (_leaf(source, shuffle, None) for shuffle in ("full", "none"))
    assert whole.keys() == windows.keys()
    for name, value in whole.items():
        assert value.dtype == windows[name].dtype
        assert value.numpy().tobytes() == windows[name].numpy().tobytes()
    return windows


def arrives(data: Path, columns: Sequence[str] | None = None, encode: bool = False) -> pa.Table:
    """All rows in file order as a collate gets them, which preprocess passed on, as dictionaries or as is."""
    tables: list[pa.Table] = []
    source = ParquetSource.open([str(data)], columns, allow_any=True)

    def collate(table: pa.Table) -> dict[str, Tensor]:
        tables.append(table)
        return {"n": torch.zeros(table.num_rows)}

    for shuffle in ("full", "none"):
        _leaf(source, shuffle, collate, encode)
    whole, windows = tables
    numbers = ParquetSource.open([str(data)], columns, allow_any=True).manifest.num_rows
    assert whole.num_rows == windows.num_rows == numbers
    assert whole.schema.equals(windows.schema)
    return windows


def _encoded(table: pa.Table) -> pa.Table:
    return pa.table({name: table[name].dictionary_encode() for name in table.column_names})


def _leaf(source: ParquetSource, shuffle: str, collate: Any, encode: bool = False) -> dict[str, Tensor]:
    rows = source.manifest.num_rows
    plan = DataPlan(source.manifest, rows, 1, 0, shuffle, 100, 1)  # type: ignore[arg-type]
    feed = open_feed(source, plan, reader="direct", preprocess=_encoded if encode else None, collate=collate)
    leaf = feed.leaf(plan.cursor_at(0), 0)
    feed.close()
    assert leaf is not None
    order = torch.from_numpy(leaf.rows).argsort()
    return {name: value[order] for name, value in leaf.batch.items()}


def refused(data: Path, tmp_path: Path, *, preprocess: bool = False, **fields: Any) -> str:
    """What `check` says of a spec over the data, without line breaks; the folder of the data as DATA."""
    told: dict[str, Any] = {"train": str(data), "min_leaf_rows": 1, **fields}
    if preprocess:
        told["preprocess"] = "keep.py:keep"
    spec = project(tmp_path / "project", data=told, batch_size=1, lanes=1, checkpoint={"every_steps": 4})
    (spec.parent / "keep.py").write_text(KEEP)
    faults = check(spec).faults
    assert faults, "check found nothing wrong"
    assert all(fault.kind == "data" and (fault.fix or "Fix:" in fault.what) for fault in faults), faults
    return re.sub(r"\s+", " ", " | ".join(map(str, faults))).replace(str(data), "DATA")
