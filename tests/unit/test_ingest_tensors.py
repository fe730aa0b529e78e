"""Arrow columns to arrays: values, shapes, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from god_ray.errors import DataError
from god_ray.ingest.columns import describe, layout
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.tensors import array_columns

NUMBERS = np.arange(24)


def nested(kind: pa.DataType) -> pa.Array:
    return pa.array(NUMBERS.reshape(4, 2, 3).tolist(), pa.list_(pa.list_(kind, 3), 2))


COLUMNS = {
    **{
        str(kind): (pa.array([0, 1, 5], kind), [0, 1, 5])
        for kind in (
            pa.int8(),
            pa.int16(),
            pa.int32(),
            pa.int64(),
            pa.uint8(),
            pa.uint16(),
            pa.uint32(),
            pa.uint64(),
        )
    },
    "half": (pa.array(np.array([0.5, 2, -1], np.float16)), [0.5, 2, -1]),
    "float": (pa.array([0.5, 2, -1], pa.float32()), [0.5, 2, -1]),
    "double": (pa.array([0.5, 2, -1], pa.float64()), [0.5, 2, -1]),
    "int64 beyond 2**53": (pa.array([2**53 + 1, -(2**62) - 1]), [2**53 + 1, -(2**62) - 1]),
    "bool": (pa.array([True, False, True]), [True, False, True]),
    "list": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], [3, 4]]),
    "list of bool": (pa.array([[True, False]] * 2, pa.list_(pa.bool_(), 2)), [[True, False]] * 2),
    "nested": (nested(pa.float32()), NUMBERS.reshape(4, 2, 3).tolist()),
    "binary": (pa.array([b"abc", b"xyz"], pa.binary(3)), [list(b"abc"), list(b"xyz")]),
    "tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(NUMBERS.reshape(4, 2, 3)),
        NUMBERS.reshape(4, 2, 3).tolist(),
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_values_and_shapes(name: str) -> None:
    column, expected = COLUMNS[name]
    for table in (
        pa.table({"c": column, "__row": pa.array(range(len(column)))}),
        pa.table({"c": pa.chunked_array([column.slice(0, 1), column.slice(1)])}),
    ):
        (made,) = array_columns(table).values()
        assert made.tolist() == expected
        assert array_columns(table.slice(1))["c"].tolist() == expected[1:]
    assert layout(pa.field("c", column.type)) is not None


def test_numbers_share_the_memory_of_the_table() -> None:
    column = pa.array(np.arange(6, dtype=np.float32))
    lists = pa.FixedSizeListArray.from_arrays(column, 2)
    made = array_columns(pa.table({"x": column.slice(0, 3), "l": lists}))
    address = column.buffers()[1].address
    assert made["x"].ctypes.data == address
    assert made["l"].ctypes.data == address
    assert made["l"].dtype == np.float32
    assert not made["x"].flags.writeable


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([1, None]), "holds 1 nulls"),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), "holds 1 nulls"),
        (pa.array([[1, None]], pa.list_(pa.int8(), 2)), "holds 1 nulls"),
        (pa.array(["a"]), "has type string, which is not a tensor"),
        (pa.array([[1], [1, 2]]), r"has type list<item: int64>|has type list<element: int64>"),
    ],
)
def test_refused(column: pa.Array, said: str) -> None:
    with pytest.raises(DataError, match=said):
        array_columns(pa.table({"c": column}))


READ_WITHOUT_RAY = """
import sys
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.tensors import array_columns
source = ParquetSource.open([sys.argv[1]])
assert "ray" not in sys.modules
print(source.manifest.fingerprint, array_columns(source.read(0, 0, 4))["t"].tolist() == eval(sys.argv[2]))
"""


def test_rays_tensor_columns_are_the_same_with_and_without_ray(tmp_path: Path) -> None:
    """A process that never imported Ray Data sees lists; the fingerprint must not depend on it."""
    from ray.data.extensions import ArrowTensorArray

    values = NUMBERS.reshape(4, 2, 3).astype(np.float32)
    pq.write_table(pa.table({"t": ArrowTensorArray.from_numpy(values)}), tmp_path / "a.parquet")
    source = ParquetSource.open([str(tmp_path)])
    assert describe(source.schema.field("t")) == "tensor<float>[2, 3]"
    assert source.row_bytes == 24
    table = pa.concat_tables([source.read(0, 1, 3), source.read(0, 0, 2)])
    assert array_columns(table)["t"].tolist() == values[[1, 2, 0, 1]].tolist()
    given = [sys.executable, "-c", READ_WITHOUT_RAY, str(tmp_path), str(values.tolist())]
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [source.manifest.fingerprint, "True"]


def test_read_tasks_do_not_import_torch() -> None:
    code = "import sys, god_ray.ingest.raydata; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
