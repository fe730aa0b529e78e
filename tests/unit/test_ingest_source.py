"""Opening data sets: what is found, what is refused and how it is said; reading rows with their numbers."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_data import rows_table, write

from god_ray.errors import DataError
from god_ray.ingest import rowgroups
from god_ray.ingest.agreement import missing_columns
from god_ray.ingest.columns import ROW
from god_ray.ingest.parquet import ParquetSource


def put(path: Path, **columns: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def refused(*paths: Path, columns: list[str] | None = None, allow_any: bool = False) -> DataError:
    with pytest.raises(DataError) as caught:
        ParquetSource.open([str(path) for path in paths], columns, allow_any=allow_any)
    return caught.value


# Finding files


def test_folder_file_glob_and_list(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet", "sub/c.parquet", "data[1].parquet"):
        put(tmp_path / name, x=[1.0, 2.0])
    for ignored in ("_SUCCESS", ".hidden", "a.parquet.crc", "_temporary/0/part.parquet"):
        (tmp_path / ignored).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ignored).write_text("no Parquet")

    def names(*paths: str) -> list[str]:
        found = ParquetSource.open([str(tmp_path / path) for path in paths]).manifest.files
        return [str(Path(file).relative_to(tmp_path)) for file in found]

    assert names("") == ["a.parquet", "b.parquet", "data[1].parquet", "sub/c.parquet"]
    assert names("b.parquet", "a.parquet") == ["b.parquet", "a.parquet"]
    assert names("?.parquet") == ["a.parquet", "b.parquet"]
    assert names("**/*.parquet") == ["a.parquet", "b.parquet", "data[1].parquet", "sub/c.parquet"]
    assert names("s*", "a.parquet") == ["sub/c.parquet", "a.parquet"]
    assert names("data[1].parquet") == ["data[1].parquet"]


def test_nothing_there_twice_there_and_broken_links(tmp_path: Path) -> None:
    a = put(tmp_path / "a.parquet", x=[1.0])
    assert "no data there" in str(refused(tmp_path / "b.parquet"))
    assert "no data there" in str(refused(tmp_path / "*.csv"))
    assert "named twice" in str(refused(a, tmp_path))
    (tmp_path / "link.parquet").symlink_to(tmp_path / "gone")
    assert "link.parquet cannot be read" in str(refused(tmp_path))


# Refusals


def test_all_faults_come_at_once_with_file_column_type_and_fix(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", x=[1, 2], name=["u", "v"], y=[1.0, 2.0])
    put(tmp_path / "b.parquet", x=[1.5], name=["w"], y=[None])
    put(tmp_path / "c.parquet", x=[1, 2], name=["u", "v"], extra=[1, 1])
    (tmp_path / "d.parquet").touch()
    (tmp_path / "e.parquet").write_bytes(b"not a Parquet file at all")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "f.parquet").write_bytes(whole[: len(whole) // 2])
    error = refused(tmp_path)
    seen = {(Path(fault.file).name, fault.column) for fault in error.data["faults"]}
    assert seen == {
        ("a.parquet", "name"),
        ("b.parquet", "x"),
        ("b.parquet", "y"),
        ("c.parquet", "y"),
        ("a.parquet", "extra"),
        ("b.parquet", "extra"),
        ("d.parquet", ""),
        ("e.parquet", ""),
        ("f.parquet", ""),
    }
    text = str(error)
    assert "a.parquet: column name (string)" in text
    assert "drop it (data.columns)" in text
    assert "b.parquet: column x (double): it is int64 in" in text
    assert "d.parquet: the file is empty (0 bytes)" in text
    assert pickle.loads(pickle.dumps(error)).data["faults"] == error.data["faults"]


def test_only_the_columns_used_must_agree(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", x=[1, 2], name=["u", "v"])
    put(tmp_path / "b.parquet", name=[1], extra=[None], x=[3])
    source = ParquetSource.open([str(tmp_path)], ["x"])
    assert [source.read(f, 0, n)["x"].to_pylist() for f, n in ((0, 2), (1, 1))] == [[1, 2], [3]]


def test_columns_come_by_name_not_by_place(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", x=[1], y=[10])
    put(tmp_path / "b.parquet", y=[20], x=[2])
    source = ParquetSource.open([str(tmp_path)])
    assert source.read(1, 0, 1).to_pydict() == {"x": [2], "y": [20], ROW: [1]}


def test_missing_columns_say_what_is_near(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", label=[1], x=[1.0])
    assert "did you mean label?" in str(refused(tmp_path, columns=["lable", "x"]))
    assert "use one of label, x" in str(refused(tmp_path, columns=["qqq"]))
    schema = ParquetSource.open([str(tmp_path)]).schema
    assert missing_columns(schema.names, ["x", "label"]) == []
    assert [fault.column for fault in missing_columns(schema.names, ["x", "z"], "a.parquet")] == ["z"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a"]),
        pa.array([b"a"]),
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([1], pa.timestamp("us")),
        pa.array([1], pa.date32()),
        pa.array([1]).cast(pa.decimal128(30, 2)),
        pa.array(["a"]).dictionary_encode(),
        pa.nulls(1),
        pa.array([[["a"]]], pa.list_(pa.list_(pa.string(), 1), 1)),
    ],
    ids=lambda column: str(column.type),
)
def test_types_that_are_no_tensors(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"x": [1.0], "odd": column}), tmp_path / "a.parquet")
    error = refused(tmp_path)
    assert "column odd" in str(error)
    assert "Fix: drop it (data.columns)" in str(error)
    assert ParquetSource.open([str(tmp_path)], ["x"]).schema.names == ["x"]
    opened = ParquetSource.open([str(tmp_path)], allow_any=True)
    assert opened.read(0, 0, 1)["odd"].to_pylist() == column.to_pylist()
    assert opened.row_bytes >= 8


def test_nulls_are_refused_with_their_number(tmp_path: Path) -> None:
    lists = pa.array([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"y": [1, None, None], "l": lists, "a.b": [1, 2, None]}), tmp_path / "a.parquet")
    faults = {fault.column: fault.rule for fault in refused(tmp_path).data["faults"]}
    assert set(faults) == {"y", "l", "a.b"}
    assert faults["y"].startswith("2 of 3 values are null")
    opened = ParquetSource.open([str(tmp_path)], allow_any=True)
    assert opened.read(0, 0, 3)["y"].null_count == 2


def test_nulls_without_statistics_show_when_read(tmp_path: Path) -> None:
    lists = pa.array([[1.0, 2.0], [1.0, None], [3.0, 4.0]], pa.list_(pa.float32(), 2))
    table = pa.table({"x": [1.0, 2.0, None], "l": lists})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=False)
    with pytest.raises(DataError, match=r"a\.parquet: column x \(double\) holds 1 nulls"):
        ParquetSource.open([str(tmp_path)], ["x"]).read(0, 0, 3)
    with pytest.raises(DataError, match=r"column l .* holds 1 nulls"):
        ParquetSource.open([str(tmp_path)], ["l"]).read(0, 0, 3)
    assert ParquetSource.open([str(tmp_path)], ["x"]).read(0, 0, 2).num_rows == 2


def test_files_without_rows_do_not_count(tmp_path: Path) -> None:
    put(tmp_path / "0.parquet", x=pa.array([], pa.string()))
    put(tmp_path / "1.parquet", x=[1.0, 2.0])
    source = ParquetSource.open([str(tmp_path)])
    assert source.manifest.num_rows == 2
    assert source.read(0, 0, 2)[ROW].to_pylist() == [0, 1]
    assert "there are no rows (1 files)" in str(refused(tmp_path / "0.parquet"))


def test_reserved_repeated_and_partition_names(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", __row=[1])
    assert "reserved" in str(refused(tmp_path / "a.parquet"))
    pq.write_table(pa.table([[1], [2], [3]], names=["x", "x", "y"]), tmp_path / "b.parquet")
    assert "2 columns have this name" in str(refused(tmp_path / "b.parquet"))
    assert ParquetSource.open([str(tmp_path / "b.parquet")], ["y"]).schema.names == ["y"]
    put(tmp_path / "hive/year=2024/c.parquet", x=[1.0])
    assert "column year: its value is only in the folder's name" in str(refused(tmp_path / "hive"))
    assert ParquetSource.open([str(tmp_path / "hive")], ["x"]).manifest.num_rows == 1


# The fingerprint


def test_the_fingerprint_follows_content_not_place(tmp_path: Path) -> None:
    first = write(tmp_path / "one", [(10, 5), (20, 7)]).manifest.fingerprint
    shutil.copytree(tmp_path / "one", tmp_path / "two")

    def now(*paths: str, columns: list[str] | None = None) -> str:
        return ParquetSource.open([str(tmp_path / path) for path in paths], columns).manifest.fingerprint

    assert now("two") == first
    assert now("two/*.parquet") == first
    changes = {
        now("two", columns=["id"]),
        now("two/001.parquet", "two/000.parquet"),
        now("two/001.parquet"),
        write(tmp_path / "three", [(10, 5), (20, 8)]).manifest.fingerprint,
    }
    assert len(changes | {first}) == 5


@pytest.mark.parametrize("groups", [1, 800])
def test_the_fingerprint_tells_a_file_with_other_values_of_the_same_size(tmp_path: Path, groups: int) -> None:
    """800 row groups: a footer that is longer than what is read at first."""
    path = tmp_path / "a.parquet"

    def rewritten(first: int) -> tuple[int, str]:
        table = pa.table({"id": np.arange(first, first + 1600, dtype=np.int64)})
        pq.write_table(table, path, row_group_size=1600 // groups, compression="none", use_dictionary=False)
        return path.stat().st_size, ParquetSource.open([str(path)]).manifest.fingerprint

    size, fingerprint = rewritten(1000)
    assert rewritten(1000) == (size, fingerprint)
    other_size, other = rewritten(1001)
    assert other_size == size
    assert other != fingerprint


# Reading


@pytest.mark.parametrize("group", [16_384, 40_000, 7])
def test_any_range_in_any_order(tmp_path: Path, group: int) -> None:
    rows = 40_000 if group > 7 else 100
    source = write(tmp_path, [(rows, group)])
    manifest = source.manifest
    generator = np.random.default_rng(1)
    for _ in range(60):
        fragment = int(generator.integers(manifest.num_fragments))
        size = int(manifest.rows[fragment])
        lo = int(generator.integers(size))
        hi = int(generator.integers(lo + 1, size + 1))
        first = int(manifest.start[fragment])
        expected = rows_table(first + lo, first + hi)
        table = source.read(fragment, lo, hi)
        assert table.drop_columns([ROW]).equals(expected)
        assert table[ROW].to_pylist() == expected["id"].to_pylist()
    with pytest.raises(IndexError):
        source.read(0, 0, int(manifest.rows[0]) + 1)


def test_a_large_row_group_is_decoded_once_when_read_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, [(100_000, 100_000)])
    started = []
    original = rowgroups._OpenGroup.__init__

    def counted(self: rowgroups._OpenGroup, *given: object) -> None:
        started.append(given)
        original(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(rowgroups._OpenGroup, "__init__", counted)
    for fragment in range(source.manifest.num_fragments):
        source.read(fragment, 0, 10)
        source.read(fragment, 10, int(source.manifest.rows[fragment]))
    assert len(started) == 1
    source.read(0, 0, 5)
    assert len(started) == 2


def test_few_files_are_open_and_a_source_can_travel(tmp_path: Path) -> None:
    source = write(tmp_path, [(2, 2)] * 40)
    for fragment in range(40):
        source.read(fragment, 0, 2)
    assert len(rowgroups._files._open) <= rowgroups.MAX_OPEN
    again = pickle.loads(pickle.dumps(source))
    assert again.manifest.fingerprint == source.manifest.fingerprint
    assert again.read(39, 1, 2)["id"].to_pylist() == [79]


def test_bytes_per_row(tmp_path: Path) -> None:
    assert write(tmp_path / "a", [(10, 10)]).row_bytes == 8 + 3 * 4 + 1 + 2
    put(tmp_path / "b.parquet", x=list(range(100)), text=[str(i) * 300 for i in range(100)])
    source = ParquetSource.open([str(tmp_path / "b.parquet")], allow_any=True)
    assert 8 + 570 <= source.row_bytes <= 8 + 570 + 60
    put(tmp_path / "c.parquet", lists=[[7] * 1000] * 100)
    assert ParquetSource.open([str(tmp_path / "c.parquet")], allow_any=True).row_bytes == 8000


@pytest.mark.parametrize("damage", ["shorter", "longer", "gone", "page", "rewritten"])
def test_damage_after_opening_names_the_file(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.parquet"
    table = rows_table(0, 5000)
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    source = ParquetSource.open([str(path)])
    assert source.read(0, 0, 3).num_rows == 3
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "page":
        content[len(content) // 4] ^= 1
        path.write_bytes(content)
    elif damage == "rewritten":
        path.write_bytes(b"x" * len(content))
    else:
        path.write_bytes(content[:-50] if damage == "shorter" else content + b"x")
    for _ in range(2):
        with pytest.raises(DataError, match=r"a\.parquet"):
            source.read(0, 0, 5000)
