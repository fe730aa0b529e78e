"""Write the UCI handwritten digits that scikit-learn carries as data/train.parquet and data/test.parquet.

In: nothing (no download). Out: 1437 training and 360 test rows of `image` (64 float32 in 0..1) and `label`
(int64), in several row groups. Running it again writes the same bytes, or nothing if they are there already.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

ROWS_PER_GROUP = 256
TEST_EVERY = 5
FOLDER = Path(__file__).resolve().parent / "data"


def digits(test: bool) -> pa.Table:
    """Every fifth image is a test image: a split that is the same everywhere, without a random generator."""
    source = load_digits()
    chosen = (np.arange(len(source.data)) % TEST_EVERY == 0) == test
    pixels = (source.data[chosen] / 16.0).astype(np.float32)
    image = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), pixels.shape[1])
    return pa.table({"image": image, "label": pa.array(source.target[chosen], pa.int64())})


def write(table: pa.Table, path: Path) -> None:
    """Write the file, unless exactly these bytes are there (a run's data fingerprint stays the same)."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=ROWS_PER_GROUP)
    if path.exists() and path.read_bytes() == buffer.getvalue():
        print(f"{path}: {table.num_rows} rows, already there")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())
    print(f"{path}: {table.num_rows} rows written")


if __name__ == "__main__":
    write(digits(test=False), FOLDER / "train.parquet")
    write(digits(test=True), FOLDER / "test.parquet")
