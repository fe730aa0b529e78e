"""What the comparisons share: the data set, the spec, the machine in words, tables.

In: sizes. Out: files below a temporary folder, strings. Must not know what is compared. Nothing here is
timed.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).resolve().parent
NUM_FEATURES = 64
BATCH_SIZE = 256


def write_data(path: Path, num_rows: int, rows_per_group: int = 10_000) -> Path:
    """`x`: 64 floats as fixed_size_list, `y`: int64 label that follows from x. Written group by group."""
    random = np.random.default_rng(0)
    schema = pa.schema([("x", pa.list_(pa.float32(), NUM_FEATURES)), ("y", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, num_rows, rows_per_group):
            count = min(rows_per_group, num_rows - start)
            x = random.standard_normal((count, NUM_FEATURES), dtype=np.float32)
            column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), NUM_FEATURES)
            y = pa.array(x[:, :10].argmax(axis=1).astype(np.int64))
            writer.write_table(pa.Table.from_arrays([column, y], schema=schema), row_group_size=count)
    return path


def spec(data: Path, widths: Sequence[int], lanes: int, workers: int, **fields: Any) -> dict[str, Any]:
    """A spec for `god_ray.train`; `fields` replace whole keys."""
    return {
        "recipe": str(FOLDER / "recipe.py"),
        "config": {"widths": list(widths)},
        "data": {"train": str(data)},
        "batch_size": BATCH_SIZE,
        "lanes": lanes,
        "workers": workers,
        "seed": 1,
        **fields,
    }


def machine() -> str:
    """One line: what was measured on, and with what."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "ray", "pyarrow"))
    model = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "?")
    python = platform.python_version()
    return f"{os.cpu_count()} cores, {model}, {platform.system()}, Python {python}, {versions}"


def _cpuinfo() -> Iterable[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()


def heading(title: str) -> None:
    print(f"\n### {title}\n\n{machine()}; `{' '.join(['python', *sys.argv])}`\n", flush=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A Markdown table on stdout."""
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median with smallest and largest: "1.02 (0.98-1.05)"."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
