"""Statistics of a training set: exact values, however its rows are cut, and what they make of rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from god_ray.errors import DataError
from god_ray.ingest import fit as fitting
from god_ray.ingest import whole
from god_ray.ingest.fitted import (
    Categories,
    Fitted,
    Scale,
    Vocabulary,
    apply_fitted,
    from_json,
    to_json,
)
from god_ray.ingest.parquet import ParquetSource


def fitted(columns: dict[str, Any], wanted: dict[str, Any], edges: Sequence[int] = ()) -> Fitted:
    """Of a table that was cut at these rows."""
    table = pa.table(columns)
    cuts = [0, *edges, table.num_rows]
    parts = [table.slice(lo, hi - lo) for lo, hi in pairwise(cuts)]
    return fitting.join([fitting.summary(part, wanted, "f.parquet") for part in parts], wanted)


def test_scale_is_mean_and_deviation() -> None:
    values = np.random.default_rng(0).normal(1e6, 3.0, 10_000)
    found = fitted({"x": values}, {"x": "scale"}, [1, 17, 9000])["x"]
    assert isinstance(found, Scale)
    assert found.mean == pytest.approx(math.fsum(values) / len(values), rel=1e-15)
    assert found.std == pytest.approx(np.std(values), rel=1e-12)
    scaled = found.apply(pa.chunked_array([values])).to_numpy()
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, ((values - found.mean) / found.std).astype(np.float32))


@pytest.mark.parametrize("value", [0.1, 1e-300, 3, 2**53 + 1])
def test_equal_values_scale_to_zero(value: float) -> None:
    found = fitted({"x": [value] * 1000}, {"x": "scale"}, [7, 300])["x"]
    assert isinstance(found, Scale)
    assert found.std == 0
    assert found.apply(pa.chunked_array([pa.array([value, 5 * value])])).to_pylist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("values", "sorted_values", "codes"),
    [
        (["dog", "cat", "emu", "cat"], ("cat", "dog", "emu"), [1, 0, 2, 0]),
        ([10, -3, 2**60 + 1, 10], (-3, 10, 2**60 + 1), [1, 0, 2, 1]),
        ([True, False, True, True], (False, True), [1, 0, 1, 1]),
    ],
)
def test_categories_are_sorted_and_coded(values: list[Any], sorted_values: Any, codes: list[int]) -> None:
    for column in (pa.array(values), pa.array(values).dictionary_encode()):
        found = fitted({"k": column}, {"k": "categories"}, [1, 3])
        assert found["k"] == Categories(sorted_values)
        table = apply_fitted(found, pa.table({"k": column, "x": range(4)}), "f.parquet")
        assert table.to_pydict() == {"k": codes, "x": [0, 1, 2, 3]}
        assert table.schema.types[0] == pa.int64()


def test_codes_of_files_do_not_matter() -> None:
    """Each file has dictionary codes of its own: 0 is cat in one, dog in the other."""
    parts = [pa.array(["cat", "dog"]).dictionary_encode(), pa.array(["dog", "emu"]).dictionary_encode()]
    wanted = {"k": "categories"}
    found = fitting.join([fitting.summary(pa.table({"k": part}), wanted, "") for part in parts], wanted)
    codes = [apply_fitted(found, pa.table({"k": part}), "").to_pydict()["k"] for part in parts]
    assert codes == [[0, 1], [1, 2]]


def test_a_vocabulary_is_by_frequency_then_by_word() -> None:
    texts = ["The cat the dog", "a  cat\n", "THE bee", ""]
    found = fitted({"t": texts}, {"t": {"vocabulary": 3}}, [1, 2])["t"]
    assert found == Vocabulary(("the", "cat", "a"))
    assert found.size == 5
    table = apply_fitted({"t": found}, pa.table({"t": texts}), "")
    assert table["t"].to_pylist() == [[2, 3, 2, 1], [4, 3], [2, 1], []]
    assert table.schema.types == [pa.list_(pa.int32())]


@pytest.mark.parametrize(
    ("column", "wanted", "said"),
    [
        (
            pa.array([1, None, 2]),
            "scale",
            "f.parquet: column c holds 1 nulls, and data.fit makes scale of it",
        ),
        (pa.array([1.0, np.inf, np.nan]), "scale", "f.parquet: column c holds 2 values that are infinite"),
        (pa.array(["a"]), "scale", r"column c \(string\) has no scale"),
        (pa.array([1.5]), "categories", r"column c \(double\) has no categories"),
        (pa.array([[1.0]]), "scale", r"column c \(list<item: double>\) has no scale"),
        (pa.array([1]), {"vocabulary": 2}, r"column c \(int64\) has no vocabulary"),
    ],
)
def test_what_cannot_be_fitted_is_named(column: pa.Array, wanted: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        fitted({"c": column}, {"c": wanted})
    with pytest.raises(DataError, match=r"data\.fit names column d, which is not there"):
        fitted({"c": column}, {"d": wanted})


def test_too_many_categories_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MAX_CATEGORIES", 3)
    with pytest.raises(DataError, match="column k has more than 3 categories"):
        fitted({"k": range(4)}, {"k": "categories"}, [2])


def test_a_value_without_a_code_is_named() -> None:
    found = {"k": Categories(("a", "b"))}
    with pytest.raises(
        DataError, match=r"e\.parquet: column k holds 'z', which no row of the training set has"
    ):
        apply_fitted(found, pa.table({"k": ["a", "z", "y"]}), "e.parquet")
    with pytest.raises(DataError, match="column k is int64, and its categories are texts"):
        apply_fitted(found, pa.table({"k": [1]}), "e.parquet")
    with pytest.raises(DataError, match="column k holds 1 nulls"):
        apply_fitted(found, pa.table({"k": ["a", None]}), "e.parquet")


def test_strict_json_and_back() -> None:
    found: Fitted = {
        "s": Scale(0.1 + 0.2, 1e-17),
        "i": Categories((-1, 2**60)),
        "b": Categories((False, True)),
        "t": Categories(("é", "\u2028")),
        "v": Vocabulary(("a", "b")),
    }
    again = from_json(to_json(found))
    assert again == found
    assert list(again) == list(found)
    assert [type(value) for value in again["b"].values] == [bool, bool]  # type: ignore[union-attr]
    for broken in ("[]", '{"format": 2, "columns": {}}', '{"format": 1, "columns": {"a": {"kind": "x"}}}'):
        with pytest.raises(ValueError):
            from_json(broken)
    json.loads(to_json(found), parse_constant=lambda text: pytest.fail(text))


def test_how_the_rows_are_read_does_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fragment is what is summed up by itself; tasks may hold as many as they like."""
    random = np.random.default_rng(1)
    table = pa.table({"x": random.normal(size=1000), "k": random.integers(0, 50, 1000)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=37)
    source = ParquetSource.open([str(tmp_path / "t.parquet")])
    wanted = {"x": "scale", "k": "categories"}
    results = set()
    for fragments in (1, 3, 64):
        monkeypatch.setattr(whole, "TASK_FRAGMENTS", fragments)
        results.add(to_json(whole.fit([source], wanted, None, False, str)))
    assert len(results) == 1
    expected = fitted(table.to_pydict(), wanted, range(37, 1000, 37))
    assert results == {to_json(expected)}


@pytest.mark.parametrize("edges", [[], [1], [2, 3]])
@pytest.mark.parametrize(
    "values",
    [
        [1e308, -1e308, 1e308, 0.0],
        [1e200, -1e200, 1e200, 0.0],
        [5e-324, 0.0, 0.0, 0.0],
        [1e-200, 2e-200, 0.0, 0.0],
    ],
)
def test_numbers_whose_squares_are_no_floats_are_refused(values: list[float], edges: list[int]) -> None:
    with pytest.raises(DataError, match=r"column x holds numbers too far apart, or too close, to be scaled"):
        fitted({"x": values}, {"x": "scale"}, edges)


@pytest.mark.parametrize("edges", [[], [1], [2, 3]])
def test_equal_values_of_any_size_are_scaled_to_zero(edges: list[int]) -> None:
    for value in (1.7e308, 5e-324, -0.0, 0.1):
        assert fitted({"x": [value] * 4}, {"x": "scale"}, edges) == {"x": Scale(value, 0.0)}


def test_categories_of_unsigned_numbers_beyond_int64() -> None:
    """Hashes as ids; what is signed in one set and unsigned in the other is the same number."""
    ids = [2**64 - 1, 5, 2**63, 2**63 - 1]
    found = fitted({"x": pa.array(ids, pa.uint64())}, {"x": "categories"}, [2])
    assert found == from_json(to_json(found)) == {"x": Categories((5, 2**63 - 1, 2**63, 2**64 - 1))}

    def codes(kind: pa.DataType, values: list[int]) -> list[int]:
        table = pa.table({"x": pa.array(values, kind)})
        return list(apply_fitted(found, table, "f.parquet")["x"].to_pylist())

    assert codes(pa.uint64(), ids) == [3, 0, 2, 1]
    assert codes(pa.int64(), [5, 2**63 - 1]) == codes(pa.uint64(), [5, 2**63 - 1]) == [0, 1]
    assert codes(pa.int8(), [5]) == [0]
    with pytest.raises(DataError, match=r"column x holds -1, which no row of the training set has"):
        codes(pa.int64(), [5, -1])
    with pytest.raises(DataError, match=r"column x is string, and its categories are whole numbers"):
        apply_fitted(found, pa.table({"x": ["5"]}), "f.parquet")
