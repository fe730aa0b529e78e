"""`file.py:function`: whatever holds rows becomes columns with the same values, in the same order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import project

from god_ray import api
from god_ray.errors import DataError, RecipeError, ResumeRefused
from god_ray.ingest.sources import function
from god_ray.ingest.sources.opening import Conversion, open_source


def rows_from(folder: Path, body: str, name: str = "rows") -> pa.Table:
    """What a function with this body returns, after it went through its copy."""
    (folder / "data.py").write_text(
        "import numpy as np, pandas as pd, pyarrow as pa, torch\n"
        "from torch.utils.data import Dataset, IterableDataset, TensorDataset; from datetime import *\n"
        f"def {name}():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    )
    place = Conversion(str(folder / "runs"))
    source = open_source([f"{folder / 'data.py'}:{name}"], None, place, allow_any=True)
    return pa.concat_tables([pq.read_table(path) for path in source.manifest.files])


def test_an_arrow_table_and_its_dictionaries(tmp_path: Path) -> None:
    table = rows_from(
        tmp_path, "return pa.table({'k': pa.array(['b', 'a']).dictionary_encode(), 'n': [1, None]})"
    )
    assert table.to_pydict() == {"k": ["b", "a"], "n": [1, None]}
    assert table.schema.types == [pa.string(), pa.int64()]


def test_a_record_batch(tmp_path: Path) -> None:
    assert rows_from(tmp_path, "return pa.record_batch({'x': [1, 2]})").to_pydict() == {"x": [1, 2]}


def test_a_pandas_frame(tmp_path: Path) -> None:
    table = rows_from(tmp_path, "return pd.DataFrame({'x': [3, 1, 2], 's': ['a', None, 'c']}).iloc[[2, 0]]")
    assert table.to_pydict() == {"x": [2, 3], "s": ["c", "a"]}
    with pytest.raises(DataError, match=r"data\.py:3: rows\(\) returned a frame whose index is day"):
        rows_from(tmp_path, "return pd.DataFrame({'x': [1]}, index=pd.Index([7], name='day'))")
    with pytest.raises(DataError, match=r"a frame that cannot be kept.*column x"):
        rows_from(tmp_path, "return pd.DataFrame({'x': [1, 'a']})")


def test_a_dataset_of_tuples_of_tensors(tmp_path: Path) -> None:
    table = rows_from(
        tmp_path, "return TensorDataset(torch.arange(60.).reshape(5, 3, 2, 2), torch.arange(5))"
    )
    assert table.schema.names == ["field_0", "field_1"]
    assert table.schema.field(0).type == pa.list_(pa.list_(pa.list_(pa.float32(), 2), 2), 3)
    assert table["field_0"][4].as_py() == [[[48, 49], [50, 51]], [[52, 53], [54, 55]], [[56, 57], [58, 59]]]
    assert table["field_1"].to_pylist() == [0, 1, 2, 3, 4]


ITEMS = """
class Items(Dataset):
    def __len__(self):
        return 5000
    def __getitem__(self, i):
        return {items}
return Items()
"""


@pytest.mark.parametrize(
    ("item", "last"),
    [
        ("{'x': np.float32(i), 'n': i, 's': str(i)}", {"x": 4999.0, "n": 4999, "s": "4999"}),
        ("torch.tensor([i, -i], dtype=torch.int16)", {"value": [4999, -4999]}),
        (
            "(np.array(i, dtype=np.uint8), b'x', i % 2 == 0)",
            {"field_0": 135, "field_1": b"x", "field_2": False},
        ),
        ("{'l': list(range(i % 3)), 'o': None if i else 1.5}", {"l": [0], "o": None}),
    ],
)
def test_the_items_of_a_dataset(tmp_path: Path, item: str, last: dict[str, Any]) -> None:
    item = item.replace("np.array(i, dtype=np.uint8)", "np.array(i % 256, dtype=np.uint8)")
    table = rows_from(tmp_path, ITEMS.replace("{items}", item))
    assert table.num_rows == 5000
    assert table.slice(4999).to_pylist() == [last]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("{'x': 1} if i < 4500 else {'y': 1}", "item 4500 has y; those before have x"),
        ("torch.zeros(2 if i < 7 else 3)", r"item 7 has a value of float32 \[3\]; the first is .*\[2\]"),
        ("1 if i < 4200 else 1.5", "item 4200 has a value of float; the first is int64"),
        ("object()", "value of the first items is object, which cannot be kept"),
        ("date(2024, 1, 1) if i < 9 else datetime(2024, 1, 2, 5)", "item 9 has a value of datetime"),
        ("datetime(2024, 1, 2, tzinfo=UTC if i < 9 else None)", "item 9 has a value of datetime"),
        ("2**70", "value of the first items is int, which cannot be kept"),
        ("2**70 if i > 4500 else 1", "item 4501 has a value of int; the first is int64"),
        ("torch.zeros(2, dtype=torch.bfloat16)", r"value of the first items is torch.bfloat16 \[2\], which"),
        ("np.zeros(2, dtype=complex)", r"value of the first items is complex128 \[2\], which cannot be kept"),
        ("np.zeros(0)", r"value of the first items is float64 \[0\], which cannot be kept"),
    ],
)
def test_items_that_differ_are_refused(tmp_path: Path, item: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        rows_from(tmp_path, ITEMS.replace("{items}", item))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "class Stream(IterableDataset):\n    def __iter__(self): pass\nreturn Stream()",
            "a Stream, which can only be gone through",
        ),
        ("yield 1", "a generator, which can only be gone through"),
        ("return None", r"data\.py:3: rows\(\) returned a NoneType"),
        ("return 'x'", "a str"),
    ],
)
def test_what_has_no_numbered_rows_is_refused(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as error:
        rows_from(tmp_path, body)
    assert "pyarrow.Table" in error.value.fix


def test_what_the_function_raises_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"data\.py:5: ZeroDivisionError"):
        rows_from(tmp_path, "x = 1\nreturn x / 0")
    with pytest.raises(RecipeError, match=r"data\.py:9: IndexError"):
        rows_from(tmp_path, ITEMS.replace("{items}", "[1][i]"))
    with pytest.raises(RecipeError, match="has no function 'rowz'"):
        open_source([f"{tmp_path / 'data.py'}:rowz"], None, Conversion(str(tmp_path)))


def test_a_run_on_a_function_goes_on_with_the_same_rows_only(tmp_path: Path) -> None:
    spec = project(tmp_path, data={"train": "data.py:train", "eval": "eval.parquet", "reader": "direct"})
    code = "import os\nimport pyarrow.parquet as pq\ndef train():\n    open('calls', 'a').write('x')\n"
    code += f"    return pq.read_table({str(tmp_path / 'train.parquet')!r})"
    calls = tmp_path / "calls"
    code = code.replace("'calls'", repr(str(calls)))
    (tmp_path / "data.py").write_text(code)
    storage = str(tmp_path / "runs")
    result = api.train(spec, debug=True, name="f", storage=storage)
    plain = project(tmp_path / "plain")
    same = api.train(plain, debug=True, name="p", storage=storage)
    assert result.state == "SUCCEEDED"
    assert result.digest == same.digest, "the order of rows follows from their number alone"
    assert calls.read_text() == "x", "called once in a process"
    record = json.loads((result.folder / "run.json").read_text())
    (result.folder / "run.json").write_text(json.dumps(record | {"state": "STOPPED"}))
    function._made.clear()
    assert api.resume("f", storage, debug=True).digest == result.digest
    assert calls.read_text() == "xx"
    (result.folder / "run.json").write_text(json.dumps(record | {"state": "STOPPED"}))
    (tmp_path / "data.py").write_text(code + ".slice(1)")
    with pytest.raises(ResumeRefused, match=r"data\.train of run f has changed\. 50 rows became 49"):
        api.resume("f", storage, debug=True)


def test_a_hugging_face_dataset(tmp_path: Path) -> None:
    """In its order, also after it was shuffled and selected from."""
    datasets = pytest.importorskip("datasets")
    make = "import datasets\nrows = datasets.Dataset.from_dict({'x': list(range(9000)), 's': ['a'] * 9000})\n"
    table = rows_from(tmp_path, make + "return rows.shuffle(seed=1).select(range(5000))")
    expected = datasets.Dataset.from_dict({"x": list(range(9000))}).shuffle(seed=1)["x"][:5000]
    assert table["x"].to_pylist() == list(expected)
    assert table["s"].unique().to_pylist() == ["a"]
    with pytest.raises(DataError, match="a IterableDataset, which can only be gone through"):
        rows_from(tmp_path, make + "return rows.to_iterable_dataset()")
    with pytest.raises(DataError, match="It holds several data sets"):
        rows_from(tmp_path, make + "return rows.train_test_split(0.5)")
