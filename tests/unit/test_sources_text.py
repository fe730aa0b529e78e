"""CSV, TSV, JSON Lines and Arrow files: exactly the values that they hold, or refused with file and line."""

from __future__ import annotations

import datetime
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from god_ray.errors import DataError
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.sources.opening import Conversion, open_source


def source_of(path: Path | str, **how: Any) -> ParquetSource:
    like = how.pop("like", None)
    conversion = Conversion(str(Path(path).parent / "runs"), **how)
    return open_source([str(path)], None, conversion, allow_any=True, like=like)


def rows_of(source: ParquetSource) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in source.manifest.files])


def column(folder: Path, *texts: str, **how: Any) -> tuple[str, list[Any]]:
    """Type and values of one column of a CSV file; an `end` column keeps empty lines apart."""
    (folder / "t.csv").write_text("x,end\n" + "".join(f"{text},.\n" for text in texts))
    table = rows_of(source_of(folder / "t.csv", **how))
    return str(table.schema.field("x").type), table["x"].to_pylist()


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "-2", "", "9223372036854775807"], "int64", [1, -2, None, 2**63 - 1]),
        (["1", "2.5", ".5", "3."], "double", [1.0, 2.5, 0.5, 3.0]),
        (["1e-3", "inf", "nan", "2"], "double", [0.001, np.inf, np.nan, 2.0]),
        (["007", "8"], "string", ["007", "8"]),
        (["+1", "2"], "string", ["+1", "2"]),
        ([" 1", "2"], "string", [" 1", "2"]),
        (["1_000"], "string", ["1_000"]),
        (["9223372036854775808", "1"], "string", ["9223372036854775808", "1"]),
        (["9007199254740993", "0.5"], "string", ["9007199254740993", "0.5"]),
        (["9007199254740992", "0.5"], "double", [2.0**53, 0.5]),
        (["1e999", "1.5"], "string", ["1e999", "1.5"]),
        (["nan", "nan"], "string", ["nan", "nan"]),
        (["true", "False", ""], "bool", [True, False, None]),
        (["1", "true"], "string", ["1", "true"]),
        (["0x1f", "1"], "string", ["0x1f", "1"]),
        (["a", "", "NA"], "string", ["a", "", "NA"]),
        (["", ""], "null", [None, None]),
        (["2024-02-29", ""], "date32[day]", [datetime.date(2024, 2, 29), None]),
        (["2023-02-29"], "string", ["2023-02-29"]),
        (["2024-01-02 03:04:05.6"], "timestamp[us]", [datetime.datetime(2024, 1, 2, 3, 4, 5, 600_000)]),
        (["2024-01-02T03:04", "2024-01-02"], "string", ["2024-01-02T03:04", "2024-01-02"]),
    ],
)
def test_a_column_is_what_all_its_values_are(
    tmp_path: Path, texts: list[str], kind: str, values: list[Any]
) -> None:
    found = column(tmp_path, *texts)
    assert found[0] == kind
    np.testing.assert_equal(found[1], values)


def test_a_time_with_a_zone_is_kept_in_utc(tmp_path: Path) -> None:
    kind, values = column(tmp_path, "2024-01-02 03:00:00Z", "2024-01-02T03:00:00+01:00")
    assert kind == "timestamp[us, tz=UTC]"
    assert [value.hour for value in values] == [3, 2]
    assert column(tmp_path, "2024-01-02 03:00:00Z", "2024-01-02 03:00:00")[0] == "string"


def test_the_last_row_of_a_long_file_counts(tmp_path: Path) -> None:
    """Several blocks: empty ones, whole numbers, and one decimal at the very end."""
    texts = ["1234567890"] * 1_500_000 + ["0.5"]
    (tmp_path / "t.csv").write_text("x,y\n" + ",\n" * 900_000 + "".join(f"{text},\n" for text in texts))
    assert (tmp_path / "t.csv").stat().st_size > 2 * (8 << 20)
    source = source_of(tmp_path / "t.csv")
    table = rows_of(source)
    assert [str(kind) for kind in table.schema.types] == ["double", "null"]
    assert table["x"].null_count == 900_000
    assert table["x"][-2:].to_pylist() == [1234567890.0, 0.5]
    assert set(source.manifest.rows[:-1].tolist()) == {16384}


def test_types_may_be_given(tmp_path: Path) -> None:
    assert column(tmp_path, "1", "", types={"x": "float32"}) == ("float", [1.0, None])
    assert column(tmp_path, "7", "", types={"x": "string"}) == ("string", ["7", ""])
    with pytest.raises(DataError, match=r"t\.csv:3: column x \(int8\): '128' is no such value.*data\.types"):
        column(tmp_path, "127", "128", types={"x": "int8"})
    with pytest.raises(DataError, match=r"column z: data\.types names it, and there is no such column"):
        column(tmp_path, "1", types={"z": "int8"})


def test_texts_that_mean_null(tmp_path: Path) -> None:
    assert column(tmp_path, "1", "NA", nulls=["NA"]) == ("int64", [1, None])
    notes: list[str] = []
    assert column(tmp_path, "1", "NA", note=notes.append)[0] == "string"
    assert notes == ["column x is text: 'NA' in row 2 is no number, as others are"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\n1,2\n\n3\n", r"t\.csv:4: 1 values, and the header names 2 columns"),
        (b'a,b\n"1\n1",2\n3,4,5\n', r"t\.csv:4: 3 values, and the header names 2 columns"),
        (b"a,b,a\n1,2,3\n", r"t\.csv:1: column a: 2 columns have this name"),
        (b"a,,c\n1,2,3\n", r"t\.csv:1: column 2 has no name"),
        (b"a,b\n1,2\n\xe9,4\n", r"t\.csv:3: byte 0xe9 is not UTF-8 text"),
        ("a,b\n1,2\n".encode("utf-16"), r"t\.csv:1: byte 0xff is not UTF-8 text"),
        (b"a,b\n1,2\n3,x\ry\n", r"t\.csv:3: a carriage return inside a row"),
        (b'a,b\n1,2\n"3,4\n', r"t\.csv:3: a quote is misplaced"),
        (b'a,b\n"x" y,2\n', r"t\.csv:2: a quote is misplaced"),
        (b"", r"t\.csv: the file is empty"),
        (b"a,b\n", r"t\.csv: there are no rows"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=said):
        source_of(tmp_path / "t.csv")


def test_all_faults_of_all_files_come_at_once(tmp_path: Path) -> None:
    for name, header in (("a", "x,y"), ("b", "x,z"), ("c", "x,x")):
        (tmp_path / f"{name}.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(DataError, match=r"c\.csv:1: column x"):
        source_of(tmp_path / "*.csv")
    (tmp_path / "c.csv").unlink()
    with pytest.raises(DataError) as error:
        source_of(tmp_path / "*.csv")
    assert [(fault.file[-7:], fault.column) for fault in error.value.data["faults"]] == [
        ("b.csv:1", "y"),
        ("b.csv:1", "z"),
    ]


def test_quotes_marks_and_line_ends(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes('\ufeffa,b\r\n"x, y\nz",""\r\n"he said ""no""",1\r\n'.encode())
    assert rows_of(source_of(tmp_path / "t.csv")).to_pydict() == {
        "a": ["x, y\nz", 'he said "no"'],
        "b": [None, 1],
    }
    (tmp_path / "u.csv").write_bytes(b'a,b\r\n"x\ry\n\r","z\r"\r\n')
    assert rows_of(source_of(tmp_path / "u.csv")).to_pydict() == {"a": ["x\ry\n\r"], "b": ["z\r"]}
    (tmp_path / "v.csv").write_bytes(b"a,b\r1,2\r3,4")
    assert rows_of(source_of(tmp_path / "v.csv")).to_pydict() == {"a": [1, 3], "b": [2, 4]}
    (tmp_path / "t.tsv").write_text("b\ta\n1\tx, y\n")
    assert rows_of(source_of(tmp_path / "t.tsv")).to_pydict() == {"b": [1], "a": ["x, y"]}


def test_a_header_that_looks_like_values_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1.5,2\n3,4\n")
    (tmp_path / "u.csv").write_text("a;b\n1;2\n")
    notes: list[str] = []
    for name in "tu" * 2:  # said again of a copy that is there
        source_of(tmp_path / f"{name}.csv", note=notes.append)
    assert ["looks like values" in note for note in notes] == [True, False] * 2
    assert "are other marks" in notes[1]


def test_several_files_and_another_order_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"y,x\nb,2.5\n"))
    table = rows_of(source_of(tmp_path / "*.csv*"))
    assert table.to_pydict() == {"x": [1.0, 2.5], "y": ["", "b"]}


def test_an_evaluation_set_has_the_types_of_the_training_set(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("x,y,z\n0.5,a,1\n")
    (tmp_path / "eval.csv").write_text("x,y\n1,1\n")
    train = source_of(tmp_path / "train.csv", types={"z": "int8"})
    table = rows_of(source_of(tmp_path / "eval.csv", types={"z": "int8"}, like=train))
    assert table.to_pydict() == {"x": [1.0], "y": ["1"]}
    (tmp_path / "train.csv").write_text("x,y\n3,a\n")
    (tmp_path / "eval2.csv").write_text("x,y\n1.5,1\n")
    train = source_of(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"eval2\.csv:2: column x \(int64\): '1\.5' is no such value"):
        source_of(tmp_path / "eval2.csv", like=train)


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"a": 1, "l": [1, 2]}, {"a": 0.5, "b": True, "l": []}, {"s": {"t": "x"}, "a": None}]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    table = rows_of(source_of(tmp_path / "t.jsonl"))
    assert table.to_pydict() == {
        "a": [1.0, 0.5, None],
        "l": [[1, 2], [], None],
        "b": [None, True, None],
        "s": [None, None, {"t": "x"}],
    }
    (tmp_path / "u.ndjson").write_text('{"when": "2024-01-02", "id": "007"}\n')
    assert rows_of(source_of(tmp_path / "u.ndjson")).to_pydict() == {"when": ["2024-01-02"], "id": ["007"]}
    kind = rows_of(source_of(tmp_path / "u.ndjson", types={"when": "date32"})).schema.field("when").type
    assert kind == pa.date32()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": 1', r"t\.jsonl:2: it is not JSON"),
        ("[1]", r"t\.jsonl:2: it holds a list, and a row is an object"),
        ('{"a": "x"}', r"t\.jsonl:2: column a: string here, int64 before"),
        ('{"a": 1, "a": 2}', r"t\.jsonl:2: it is not JSON \(the key 'a' is there twice"),
        ('{"a": 9223372036854775808}', r"t\.jsonl:2: column a: 9223372036854775808 is beyond int64"),
        ('{"a": 9007199254740993}\n{"a": 0.5}', r"t\.jsonl:2: column a \(double\): 9007199254740993 is no"),
        ('{"b": "\udce9"}', r"t\.jsonl:2: byte 0xe9 is not UTF-8 text"),
        ('{"b": [1, -1e400]}', r"t\.jsonl:2: it is not JSON \(-1e400 is beyond float64"),
        ('{"\\ud800": 1}', r"t\.jsonl:2: it is not JSON \(.*surrogates not allowed"),
        ('{"b": ' + "[" * 500 + "]" * 500 + "}", r"t\.jsonl:2: its lists are nested too deep"),
    ],
)
def test_a_broken_line_of_json_is_named(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "t.jsonl").write_text(f'{{"a": 1}}\n{line}\n', errors="surrogateescape")
    with pytest.raises(DataError, match=said):
        source_of(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int64", [1, 2.0, -3.0], 1.5),
        ("int8", [1, -128.0], 128),
        ("int64", [0], True),
        ("float32", [0.5, 16777216, float("inf")], 1e39),
        ("float32", [0], 16777217),
        ("bool", [True], 1),
    ],
)
def test_json_keeps_given_types_exactly(tmp_path: Path, kind: str, good: list[Any], bad: Any) -> None:
    (tmp_path / "good.jsonl").write_text("".join(json.dumps({"a": value}) + "\n" for value in good))
    assert rows_of(source_of(tmp_path / "good.jsonl", types={"a": kind}))["a"].to_pylist() == good
    (tmp_path / "bad.jsonl").write_text(f'{{"a": null}}\n{{"a": {json.dumps(bad)}}}\n')
    shown = re.escape(json.dumps(bad))
    with pytest.raises(DataError, match=rf"bad\.jsonl:2: column a .*: {shown} is no such value"):
        source_of(tmp_path / "bad.jsonl", types={"a": kind})


def test_json_of_an_evaluation_set_is_not_cut_to_the_types_of_the_training_set(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"a": [1, 2], "s": {"t": 1}}\n')
    train = source_of(tmp_path / "train.jsonl")
    for row in ({"a": [1, 2.5]}, {"s": {"t": 0.5}}, {"s": {"t": 1, "u": 2}}):
        (tmp_path / "eval.jsonl").write_text(json.dumps(row) + "\n")
        with pytest.raises(DataError, match=r"eval\.jsonl:1: column [as] .* is no such value"):
            source_of(tmp_path / "eval.jsonl", like=train)


def test_arrow_and_feather(tmp_path: Path) -> None:
    """Codes of dictionaries are a file's own: the values are what is kept."""
    first = pa.table({"k": pa.array(["cat", "dog"]).dictionary_encode(), "n": pa.nulls(2)})
    second = pa.table({"k": pa.array(["dog", "emu"]).dictionary_encode(), "n": pa.array([1, 2**53 + 1])})
    with pa.ipc.new_file(tmp_path / "0.arrow", first.schema) as writer:
        writer.write_table(first)
    feather.write_feather(second, tmp_path / "1.feather")
    with pa.ipc.new_stream(tmp_path / "2.arrows", second.schema) as writer:
        writer.write_table(second)
    table = rows_of(source_of(tmp_path / "[012].*"))
    assert table.schema.types == [pa.string(), pa.int64()]
    assert table["k"].to_pylist() == ["cat", "dog", "dog", "emu", "dog", "emu"]
    assert table["n"].to_pylist() == [None, None, *[1, 2**53 + 1] * 2]
    (tmp_path / "3.arrow").write_bytes((tmp_path / "0.arrow").read_bytes()[:-20])
    with pytest.raises(DataError, match=r"3\.arrow: it is not a whole Arrow file"):
        source_of(tmp_path / "3.arrow")


def test_types_that_parquet_does_not_have_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": 1, "s": {}}\n')
    with pytest.raises(
        DataError, match=r"^column s \(struct<>\): Parquet, in which a copy is kept, has no such"
    ):
        source_of(tmp_path / "t.jsonl")
    ends = pa.RunEndEncodedArray.from_arrays([2, 3], ["x", "y"])
    spans = pa.array([pa.MonthDayNano([1, 2, 3])] * 3)
    table = pa.table({"a": [1, 2, 3], "e": ends, "i": spans})
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"(?s)2 faults.*column e \(run_end.*column i \(month_day_nano"):
        source_of(tmp_path / "t.arrow")


def test_files_of_several_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("x\n1\n")
    (tmp_path / "data" / "README.md").write_text("about")
    with pytest.raises(DataError, match=r"2 kinds: .*t\.csv \(csv\), .*README\.md \(parquet\)"):
        source_of(tmp_path / "data")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"data\.types is given, and the data are Parquet"):
        source_of(tmp_path / "t.parquet", types={"x": "int8"})


def test_a_fault_of_the_copy_names_the_file_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n1,a\n")
    with pytest.raises(
        DataError, match=rf"{tmp_path}/t\.csv: column y \(string\): this type is not a tensor"
    ):
        open_source([str(tmp_path / "t.csv")], None, Conversion(str(tmp_path / "runs")))


def test_with_a_fit_the_other_columns_are_looked_at_before_the_run(tmp_path: Path) -> None:
    """A null far behind the first rows, a column that nobody makes a tensor, a category of the test alone."""
    from small_runs import project

    from god_ray.runtime.check import check

    spec = project(tmp_path)
    header, rows = "x,y,k,s\n", [f"{i}.5,{i % 3},{'ab'[i % 2]},t\n" for i in range(50)]
    (tmp_path / "recipe.py").write_text(
        "import torch\nimport god_ray\n\n\ndef build(config, fitted):\n"
        "    model = torch.nn.Embedding(fitted['k'].size, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    return god_ray.Recipe(model, optimizer, lambda model, batch: model(batch['k']).mean())\n"
    )

    def found(column: str, row: str, *, test_row: str = "1.5,1,a,t\n") -> list[str]:
        (tmp_path / "train.csv").write_text(header + "".join([*rows, row]))
        (tmp_path / "eval.csv").write_text(header + "1.5,1,a,t\n" * 20 + test_row)
        changes = ["data.train=train.csv", "data.eval=eval.csv", "data.fit={k: categories}"]
        changes += [f"data.columns=[{column}]", "checkpoint.keep_best=null"]
        return [f"{fault.where}: {fault.what}" for fault in check(spec, changes).faults]

    assert found("k, x, y", "7.5,1,a,t\n") == []
    assert found("k, x, y", ",1,a,t\n") == [
        "train.csv, column x: double: 1 of 51 values are null, and a tensor has no null"
    ]
    assert found("k, s", "7.5,1,a,t\n")[0].startswith(
        "train.csv, column s: string: this type is not a tensor"
    )
    wrong = found("k, x", "7.5,1,a,t\n", test_row="1.5,1,c,t\n")
    assert wrong == [": eval.csv: column k holds 'c', which no row of the training set has."]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Cut in the middle of its compressed bytes, or a quote that is never closed in a long file."""
    rows = "".join(f"{i},{i * 7919 % 1000}\n" for i in range(50_000))
    for name in ("t.csv.gz", "t.jsonl.gz"):
        (tmp_path / name).write_bytes(gzip.compress(f"a,b\n{rows}".encode())[:-9000])
    with pytest.raises(DataError, match=r"t\.csv\.gz cannot be read: .*end-of-stream"):
        source_of(tmp_path / "t.csv.gz")
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 5000)[:-9])
    with pytest.raises(DataError, match=r"t\.jsonl\.gz cannot be read: .*end-of-stream"):
        source_of(tmp_path / "t.jsonl.gz")
    (tmp_path / "q.csv").write_text(f'a,b\n1,"2\n{rows}')
    with pytest.raises(DataError, match=r"q\.csv:2: a quote is misplaced \(unexpected end of data\)"):
        source_of(tmp_path / "q.csv")
    (tmp_path / "r.csv").write_bytes(b"a,b\n1\n" + b"1,2\n" * 5 + b"\xff,2\n")
    with pytest.raises(DataError, match=r"r\.csv:8: byte 0xff is not UTF-8 text"):
        source_of(tmp_path / "r.csv")
