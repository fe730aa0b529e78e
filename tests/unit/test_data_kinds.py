"""Every kind of column: exactly right, or refused at `check`. docs/data.md has a row for each test."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
import torch
from data_kinds import arrives, files, put, refused, tensors

BIG = [4873214862074861312, -9_007_199_254_740_993, 4873214862074860545]
ZONE = ZoneInfo("America/New_York")


def same_both_ways(tmp_path: Path, one: pa.Array, other: pa.Array) -> pa.ChunkedArray:
    """The column as it arrives from two files, one after the other; the type is the same in either order."""
    a = arrives(files(tmp_path / "one", {"v": one}, {"v": other}))["v"]
    b = arrives(files(tmp_path / "other", {"v": other}, {"v": one}))["v"]
    assert a.type == b.type
    assert a.to_pylist() == one.to_pylist() + other.to_pylist()
    assert b.to_pylist() == other.to_pylist() + one.to_pylist()
    return a


def refused_both_ways(tmp_path: Path, one: pa.Array, other: pa.Array) -> None:
    """As tensors or not, whichever comes first, with both files and both types in one sentence."""
    for name, pair in {"one": (one, other), "other": (other, one)}.items():
        data = files(tmp_path / name, {"v": pair[0]}, {"v": pair[1]})
        for preprocess in (False, True):
            text = refused(data, tmp_path, preprocess=preprocess)
            assert "DATA/b.parquet, column v" in text
            assert f"{pair[1].type}: it is {pair[0].type} in DATA/a.parquet, and no type holds" in text
            assert "Fix: write all files with one schema" in text


def refused_as_tensor(tmp_path: Path, column: pa.Array, hint: str) -> None:
    data = files(tmp_path / "data", {"x": [1.0] * len(column), "v": column})
    text = refused(data, tmp_path)
    assert "DATA/a.parquet, column v" in text
    assert "this type is not a tensor" in text
    assert "Fix: drop it (data.columns), or convert it with data.preprocess or the recipe's collate" in text
    assert hint in text
    assert tensors(data, ["x"])["x"].tolist() == [1.0] * len(column)


# Numbers


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers(tmp_path: Path, kind: str) -> None:
    edges = np.iinfo(kind)
    data = files(tmp_path, {"v": pa.array([edges.min, 1, edges.max], kind)})
    value = tensors(data)["v"]
    assert value.dtype == getattr(torch, kind)
    assert value.numpy().tolist() == [edges.min, 1, edges.max]


def test_int64_ids_beyond_2_53(tmp_path: Path) -> None:
    value = tensors(files(tmp_path, {"v": BIG[:2]}, {"v": BIG[2:]}))["v"]
    assert value.dtype == torch.int64
    assert value.tolist() == BIG


@pytest.mark.parametrize(
    ("kind", "values"),
    [("halffloat", [0.5, -0.0, 65504.0]), ("float", [0.1, 1e-45, 3e38]), ("double", [0.1, 5e-324, 1e308])],
)
def test_floats(tmp_path: Path, kind: str, values: list[float]) -> None:
    width = {"halffloat": np.float16, "float": np.float32, "double": np.float64}[kind]
    expected = np.array([*values, np.nan, np.inf, -np.inf], width)
    value = tensors(files(tmp_path, {"v": pa.array(expected)}))["v"]
    assert value.numpy().dtype == width
    assert value.numpy().tobytes() == expected.tobytes()


def test_bool(tmp_path: Path) -> None:
    value = tensors(files(tmp_path, {"v": [True, False]}, {"v": [False, True]}))["v"]
    assert value.dtype == torch.bool
    assert value.tolist() == [True, False, False, True]


@pytest.mark.parametrize("statistics", [True, False])
def test_nulls(tmp_path: Path, statistics: bool) -> None:
    table = pa.table({"v": [BIG[0], None, BIG[2]], "x": [1.0, 2.0, 3.0]})
    data = put(tmp_path / "data/a.parquet", table, write_statistics=statistics).parent
    text = refused(data, tmp_path)
    assert "DATA/a.parquet" in text
    assert "column v" in text
    assert "int64" in text
    assert "fill them" in text
    column = arrives(data)["v"]
    assert (column.type, column.to_pylist()) == (pa.int64(), [BIG[0], None, BIG[2]])
    assert tensors(data, ["x"])["x"].tolist() == [1, 2, 3]


def test_integers_of_several_widths(tmp_path: Path) -> None:
    column = same_both_ways(tmp_path / "s", pa.array([-1, 2**31 - 1], "int32"), pa.array(BIG))
    assert column.type == pa.int64()
    column = same_both_ways(tmp_path / "u", pa.array([255], "uint8"), pa.array([65535], "uint16"))
    assert column.type == pa.uint16()
    three = [{"v": pa.array([1], kind)} for kind in ("int32", "int8", "int64")]
    value = tensors(files(tmp_path / "three", *three))["v"]
    assert (value.dtype, value.tolist()) == (torch.int64, [1, 1, 1])


def test_floats_of_several_widths(tmp_path: Path) -> None:
    half, double = pa.array(np.array([0.1, 2.5], np.float16)), pa.array([0.1])
    assert same_both_ways(tmp_path, half, double).type == pa.float64()


@pytest.mark.parametrize(
    ("one", "other"),
    [("int64", "double"), ("int8", "float"), ("int32", "uint32"), ("bool", "int8"), ("int64", "string")],
)
def test_types_that_no_type_holds(tmp_path: Path, one: str, other: str) -> None:
    column = pa.array(["1"]) if other == "string" else pa.array([1], other)
    refused_both_ways(tmp_path, pa.array([1]).cast(one), column)


# Columns that files have or lack


def test_a_file_whose_column_is_all_null(tmp_path: Path) -> None:
    assert same_both_ways(tmp_path / "t", pa.nulls(2), pa.array(["x"])).type == pa.large_string()
    lists = pa.array([[{"a": 1}]], pa.list_(pa.struct([("a", pa.int64())])))
    assert same_both_ways(tmp_path / "l", pa.nulls(2), lists).type == lists.type
    text = refused(files(tmp_path / "data", {"v": pa.nulls(2)}, {"v": [1.0]}), tmp_path)
    assert "DATA/a.parquet, column v: null: 2 of 2 values are null, and a tensor has no null" in text
    assert arrives(files(tmp_path / "all", {"v": pa.nulls(2)}))["v"].to_pylist() == [None, None]
    assert "it holds nothing but nulls" in refused(tmp_path / "all", tmp_path)


def test_columns_that_only_some_files_have(tmp_path: Path) -> None:
    one, other = {"x": [1.0], "y": [1]}, {"y": [2], "x": [2.0], "z": [2]}
    for name, pair in {"later": (one, other), "first": (other, one)}.items():
        data = files(tmp_path / name, *pair)
        lacks, has = ("a", "b") if name == "later" else ("b", "a")
        text = f"DATA/{lacks}.parquet, column z: int64: the column is missing; DATA/{has}.parquet has it"
        assert text in refused(data, tmp_path)
        assert text in refused(data, tmp_path, columns=["z", "x"])
        assert tensors(data, ["y", "x"])["x"].tolist() == [row["x"][0] for row in pair]


def test_columns_that_are_required_in_some_files(tmp_path: Path) -> None:
    required = pa.schema([pa.field("v", pa.int64(), nullable=False)])
    pair = pa.table({"v": [1]}, schema=required), pa.table({"v": [2]})
    assert tensors(files(tmp_path / "one", *pair))["v"].tolist() == [1, 2]
    assert tensors(files(tmp_path / "other", *reversed(pair)))["v"].tolist() == [2, 1]
    assert arrives(tmp_path / "one")["v"].to_pylist() == [1, 2]


def test_dotted_names(tmp_path: Path) -> None:
    """A column `a.b` beside a struct `a` with a field `b`: to Parquet both are the path a.b."""
    structs = [{"b": 1, "c": 2}, {"b": 3, "c": 4}]
    data = files(tmp_path, {"a": structs, "a.b": [10.0, 30.0], "a.c": [5, 6]})
    assert tensors(data, ["a.b"])["a.b"].tolist() == [10.0, 30.0]
    assert tensors(data, ["a.c", "a.b"])["a.c"].tolist() == [5, 6]
    assert arrives(data, ["a"]).to_pylist() == [{"a": row} for row in structs]


def test_repeated_and_reserved_names(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "y"])
    data = files(tmp_path / "twice", twice)
    assert "column x: 2 columns have this name" in refused(data, tmp_path)
    assert tensors(data, ["y"])["y"].tolist() == [3]
    assert "column __row: the name is reserved" in refused(
        files(tmp_path / "row", {"x": [1], "__row": [1]}), tmp_path
    )


def test_hive_partition_columns(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data / "year=2024/a.parquet", {"x": [1.0]})
    put(data / "year=2025/a.parquet", {"x": [2.0]})
    rule = "DATA/year=2024/a.parquet, column year: its value is only in the folder's name"
    assert rule in refused(data, tmp_path)
    assert rule in refused(data, tmp_path, columns=["x", "year"])
    assert tensors(data, ["x"])["x"].tolist() == [1.0, 2.0]
    put(data / "year=2024/a.parquet", {"x": [1.0], "year": [2024]})
    put(data / "year=2025/a.parquet", {"x": [2.0], "year": [2025]})
    assert tensors(data)["year"].tolist() == [2024, 2025]


# Text, bytes, categories


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_text(tmp_path: Path, kind: str) -> None:
    text = pa.array(["", "käse", None], getattr(pa, kind)())
    assert same_both_ways(tmp_path, text, pa.array(["x"])).type == pa.large_string()
    refused_as_tensor(tmp_path, text, "pyarrow.compute.index_in(column, value_set=[...])")


@pytest.mark.parametrize("kind", ["binary", "large_binary", "binary_view"])
def test_bytes(tmp_path: Path, kind: str) -> None:
    content = pa.array([b"", b"\0\xff", None], getattr(pa, kind)())
    assert same_both_ways(tmp_path, content, pa.array([b"x"])).type == pa.large_binary()
    refused_as_tensor(tmp_path, content, "")


def test_bytes_of_one_length(tmp_path: Path) -> None:
    value = tensors(files(tmp_path / "data", {"v": pa.array([b"ab", b"\xff\0"], pa.binary(2))}))["v"]
    assert (value.dtype, value.tolist()) == (torch.uint8, [[97, 98], [255, 0]])
    refused_both_ways(tmp_path, pa.array([b"ab"], pa.binary(2)), pa.array([b"abc"], pa.binary(3)))


def test_dictionary_codes_that_differ_between_files(tmp_path: Path) -> None:
    pets = [pa.array(words).dictionary_encode() for words in (["cat", "dog"], ["dog", "emu", None])]
    assert pets[0].indices.to_pylist()[:2] == pets[1].indices.to_pylist()[:2] == [0, 1]
    column = same_both_ways(tmp_path / "d", *pets)
    assert column.type == pa.large_string()
    assert same_both_ways(tmp_path / "mixed", pets[0], pa.array(["emu"])).type == pa.large_string()
    refused_as_tensor(tmp_path, pets[0], "pyarrow.compute.index_in(column, value_set=[...])")
    again = arrives(tmp_path / "d/one", encode=True)["v"]  # by preprocess, piece by piece
    assert (again.type, again.to_pylist()) == (column.type, column.to_pylist())
    numbers = pa.array(BIG).dictionary_encode()
    assert tensors(files(tmp_path / "n", {"v": numbers}))["v"].tolist() == BIG


# Times and decimals


def test_timestamps_with_and_without_zone(tmp_path: Path) -> None:
    moments = [dt.datetime(2024, 3, 10, 0, 0, tzinfo=ZONE), dt.datetime(1600, 1, 1, tzinfo=ZONE)]
    plain = [dt.datetime(2300, 1, 1, 0, 0, 0, 1), None]
    columns = {
        "there": pa.array(moments, pa.timestamp("us", "America/New_York")),
        "offset": pa.array([0, 1], pa.timestamp("ns", "+01:00")),
        "plain": pa.array(plain, pa.timestamp("us")),
    }
    table = arrives(files(tmp_path / "kept", columns))
    for name, column in columns.items():
        assert table[name].type == column.type
        assert table[name].to_pylist() == column.to_pylist()
    refused_as_tensor(tmp_path, columns["there"], 'column.cast("int64") counts units since 1970 in UTC')


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
        (pa.timestamp("ms"), pa.timestamp("us")),
    ],
    ids=str,
)
def test_timestamps_that_differ_in_unit_or_zone(tmp_path: Path, one: pa.DataType, other: pa.DataType) -> None:
    refused_both_ways(tmp_path, pa.array([1], one), pa.array([1], other))


def test_int96_timestamps(tmp_path: Path) -> None:
    """In year 2300: as nanoseconds it would be 1715."""
    moments = pa.array([dt.datetime(2300, 1, 1)], pa.timestamp("us"))
    put(tmp_path / "data/a.parquet", {"v": moments, "x": [1.0]}, use_deprecated_int96_timestamps=True)
    for preprocess in (False, True):
        text = refused(tmp_path / "data", tmp_path, preprocess=preprocess)
        assert "DATA/a.parquet, column v: timestamp[ns]: these are INT96 timestamps" in text
    assert tensors(tmp_path / "data", ["x"])["x"].tolist() == [1.0]


def test_dates_times_and_durations(tmp_path: Path) -> None:
    columns = {
        "date": (pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]), 'cast("int32") counts days'),
        "time": (pa.array([dt.time(23, 59, 59, 1), None]), 'column.cast("int64") counts its units'),
        "span": (pa.array([1, -(2**62)], pa.duration("us")), 'column.cast("int64") counts its units'),
    }
    table = arrives(files(tmp_path / "kept", {name: column for name, (column, _) in columns.items()}))
    for name, (column, hint) in columns.items():
        assert table[name].type == column.type
        assert table[name].to_pylist() == column.to_pylist()
        refused_as_tensor(tmp_path / name, column, hint)


def test_decimals(tmp_path: Path) -> None:
    money = pa.array([Decimal("1.10"), Decimal("12345678901234567890.12"), None], pa.decimal128(30, 2))
    column = arrives(files(tmp_path / "kept", {"v": money}))["v"]
    assert (column.type, column.to_pylist()) == (money.type, money.to_pylist())
    refused_as_tensor(tmp_path, money, 'column.cast("float64") rounds')
    refused_both_ways(tmp_path, pa.array([Decimal("1.10")]), pa.array([Decimal("1.100")]))


# Nested


def test_lists_of_fixed_size(tmp_path: Path) -> None:
    lists = pa.array([[1.5, 2.0], [3.0, -0.0]], pa.list_(pa.float32(), 2))
    nested = pa.array([[[1, 2, 3], [4, 5, 6]]] * 2, pa.list_(pa.list_(pa.int16(), 3), 2))
    found = tensors(files(tmp_path / "data", {"v": lists, "n": nested}))
    assert (found["v"].dtype, found["v"].tolist()) == (torch.float32, [[1.5, 2.0], [3.0, 0.0]])
    assert (found["n"].dtype, found["n"].shape) == (torch.int16, (2, 2, 3))
    wide = pa.array([[0.1, 0.2]], pa.list_(pa.float64(), 2))
    assert same_both_ways(tmp_path / "wide", lists, wide).type == wide.type
    lists = lists.cast(pa.list_(pa.field("element", pa.float32()), 2))
    other = pa.array([[1.0]], pa.list_(pa.field("element", pa.float32()), 1))
    refused_both_ways(tmp_path, lists, other)


def test_lists_equal_and_ragged(tmp_path: Path) -> None:
    hint = "column.cast(pyarrow.list_(pyarrow.float32(), N)) if each row has N numbers"
    for name, rows in {"equal": [[1, 2], [3, 4]], "ragged": [[1], [], None, [2, None, 3]]}.items():
        lists = pa.array(rows)
        refused_as_tensor(tmp_path / name, lists, hint)
        column = arrives(tmp_path / name / "data", ["v"])["v"]
        assert (column.type, column.to_pylist()) == (pa.list_(pa.field("element", pa.int64())), rows)
    wide = pa.array([["x"], None], pa.large_list(pa.large_string()))
    assert same_both_ways(tmp_path / "wide", pa.array([["y", None]]), wide).type == wide.type


def test_null_rows_in_lists(tmp_path: Path) -> None:
    for rows in ([[1.0, 2.0], None], [[1.0, None], [3.0, 4.0]]):
        data = files(tmp_path / "data", {"v": pa.array(rows, pa.list_(pa.float32(), 2))})
        assert "a.parquet, column v" in refused(data, tmp_path)
        assert arrives(data)["v"].to_pylist() == rows


def test_structs(tmp_path: Path) -> None:
    small = pa.array([{"a": 1, "t": "x"}, None], pa.struct([("a", pa.int8()), ("t", pa.string())]))
    large = pa.array([{"a": BIG[0], "t": None}], pa.struct([("a", pa.int64()), ("t", pa.large_string())]))
    assert same_both_ways(tmp_path / "kept", small, large).type == large.type
    refused_as_tensor(tmp_path, small, 'pyarrow.compute.struct_field(column, "name")')
    refused_both_ways(tmp_path, pa.array([{"a": 1}]), pa.array([{"b": 1}]))


def test_maps(tmp_path: Path) -> None:
    small = pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32()))
    large = pa.array([[("k", BIG[0]), ("l", None)], []], pa.map_(pa.string(), pa.int64()))
    column = same_both_ways(tmp_path / "kept", small, large)
    assert column.type == pa.map_(pa.large_string(), pa.int64())
    refused_as_tensor(tmp_path, small, "")


def test_tensor_columns(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    assert tensors(files(tmp_path / "data", {"v": column}))["v"].numpy().tolist() == values.tolist()
    other = pa.FixedShapeTensorArray.from_numpy_ndarray(values.reshape(2, 3, 2))
    refused_both_ways(tmp_path, column, other)
