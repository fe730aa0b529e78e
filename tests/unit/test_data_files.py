"""What lies in folders of data: side files, broken files, odd files. docs/data.md has a row for each test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_kinds import files, put, refused, tensors
from flaky_s3 import Fault, Flaky, answer, matching, only_key, reset, stall
from pyarrow import fs
from s3 import Endpoint, key_file
from small_runs import RECIPE, project

from god_ray import saying
from god_ray.errors import DataError
from god_ray.ingest.pages import read_pages
from god_ray.ingest.parquet import ParquetSource
from god_ray.runtime.check import check
from god_ray.storage import inputs
from god_ray.storage.retrying import Retrying
from god_ray.storage.tries import Patience

ROOT = Path(__file__).parents[2]
SIDE = (
    *("_SUCCESS", "_metadata", "_common_metadata", ".part-0.parquet.crc", "part-0.parquet.crc"),
    *("part-0.parquet.tmp", "_temporary/0/part-9.parquet", ".ipynb_checkpoints/part-0-checkpoint.parquet"),
)


def found(*entries: Path) -> list[str]:
    return list(ParquetSource.open([str(entry) for entry in entries]).manifest.files)


def test_side_files(tmp_path: Path) -> None:
    """The same by folder, glob and list, also a list that names everything that lies there."""
    data = tmp_path / "data"
    parts = [put(data / f"part-{i}.parquet", {"x": [float(i)]}) for i in range(3)]
    for name in SIDE:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(parts[0], data / name)  # whole files: only the name tells
    everything = sorted(path for path in data.rglob("*") if path.is_file())
    assert len(everything) == 3 + len(SIDE)
    expected = [str(part) for part in parts]
    for entries in ([data], [data / "*"], [data / "**"], [data / "*.parquet"], everything, parts):
        assert found(*entries) == expected
    fingerprints = {
        ParquetSource.open([str(entry) for entry in entries]).manifest.fingerprint
        for entries in ([data], [data / "*"], everything)
    }
    assert len(fingerprints) == 1
    for name in SIDE:
        text = refused(data / name, tmp_path)
        assert "DATA: only a side file" in text
        assert "point at the data, or give the file another name" in text


@pytest.mark.parametrize("entry", ["data", "data/**", "data/**/*.parquet", "data/*"])
def test_links_that_lead_back_are_refused(tmp_path: Path, entry: str) -> None:
    """Two of them, which to follow would take for ever, and two that are in each other's folders."""
    put(tmp_path / "data" / "a" / "x.parquet", {"x": [1.0]})
    assert found(tmp_path / entry) == [str(tmp_path / "data" / "a" / "x.parquet")]
    for name in ("one", "two"):
        (tmp_path / "data" / "a" / name).symlink_to("../..")
    with pytest.raises(DataError, match=r"data.* are one folder\n.*A link leads to it"):
        found(tmp_path / entry)


def test_what_is_no_file_is_refused_unread(tmp_path: Path) -> None:
    """A pipe has no end to wait for."""
    for name in ("pipe.csv", "pipe.parquet"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError, match=rf"{name} is no file\n.*a pipe, a socket or a device"):
            found(tmp_path / name)
    with pytest.raises(DataError, match=r"pipe\.csv is no file"):
        found(tmp_path)


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "x.parquet", {"x": [1.0]})
    os.rename(path, os.fsencode(tmp_path) + b"/x\xff.parquet")
    with pytest.raises(DataError, match=r"x\\xff\.parquet has a name that is not UTF-8\n  Fix: rename it"):
        found(tmp_path)


@pytest.mark.parametrize("log", ["_delta_log", ".hoodie", "_spark_metadata"])
def test_tables_with_a_log(tmp_path: Path, log: str) -> None:
    data = files(tmp_path / "data", {"x": [1.0]})
    (data / log).mkdir()
    text = refused(data, tmp_path)
    assert f"Which of its files count is written in {log}" in text
    assert "Fix: write its rows to plain Parquet files" in text


def test_zero_bytes_truncated_and_other_formats(tmp_path: Path) -> None:
    data = files(tmp_path / "data", {"x": [1.0]}, {"x": [2.0]})
    whole = (data / "a.parquet").read_bytes()
    (data / "c.parquet").touch()
    (data / "d.parquet").write_bytes(whole[: len(whole) // 2])
    (data / "e.parquet").write_text("x\n1.0\n")
    text = refused(data, tmp_path)
    assert "DATA/c.parquet: the file is empty (0 bytes) Fix: remove it, or write it again" in text
    for name in ("d.parquet", "e.parquet"):
        assert re.search(f"DATA/{name}: it is not a whole Parquet file .* Fix: remove it", text)
    assert "a.parquet" not in text


def test_files_without_rows(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.string())])  # not even its types count
    full = [{"x": [1.0, 2.0]}, {"x": [3.0]}]
    for place in range(3):
        data = tmp_path / f"at-{place}"
        sets: list[object] = [*full]
        sets.insert(place, schema.empty_table())
        files(data, *sets)  # type: ignore[arg-type]
        assert tensors(data)["x"].tolist() == [1.0, 2.0, 3.0]
    with pq.ParquetWriter(tmp_path / "at-0/0.parquet", schema):
        pass
    assert pq.read_metadata(tmp_path / "at-0/0.parquet").num_row_groups == 0
    assert tensors(tmp_path / "at-0")["x"].tolist() == [1.0, 2.0, 3.0]
    empty = files(tmp_path / "empty", schema.empty_table(), schema.empty_table())
    text = refused(empty, tmp_path)
    assert "DATA/a.parquet: there are no rows (2 files) Fix: point at data with rows" in text


def damaged(path: Path, *places: tuple[int, int]) -> Path:
    """A file of three row groups with a bit flipped in a page of each of these (row group, column)."""
    random = np.random.default_rng(0)
    columns = {name: random.random(6000) for name in ("a", "b", "c")}
    put(path, columns, write_page_checksum=True, row_group_size=2000, use_dictionary=False)
    content, metadata = bytearray(path.read_bytes()), pq.read_metadata(path)
    for group, column in places:
        chunk = metadata.row_group(group).column(column)
        content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 0x40
    path.write_bytes(content)
    return path


def test_damaged_pages(tmp_path: Path) -> None:
    """All of them, with file, column and row group; of the columns used."""
    data = tmp_path / "data"
    damaged(data / "a.parquet", (0, 1), (2, 0), (2, 2))
    damaged(data / "b.parquet", (1, 1))
    text = refused(data, tmp_path)
    places = re.findall(r"DATA/(\w)\.parquet, column (\w): double: row group (\d) is damaged", text)
    assert places == [("a", "b", "0"), ("a", "a", "2"), ("a", "c", "2"), ("b", "b", "1")]
    assert "CRC checksum verification failed" in text
    assert "Fix: restore the file, or write it again" in text
    assert "a.parquet" in refused(data, tmp_path, columns=["c"])
    assert "b.parquet" not in refused(data, tmp_path, columns=["c"])


def large_for_check(folder: Path, train: Path | str) -> Path:
    """A spec for which that data is large."""
    data = {"train": str(train), "memory_bytes": 100}
    return project(folder, data=data, checkpoint={"every_steps": 4})


def test_pages_of_a_large_set_are_read_when_asked_for(
    god_ray_here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = large_for_check(tmp_path, "train.parquet")
    told = check(spec)
    assert (told.faults, told.facts["files_not_read"]) == ([], 1)
    assert any("pages of 1 files were not read" in text for text in told.warnings)
    monkeypatch.setattr(saying, "EVERY_S", 0.0)
    said: list[str] = []
    told = check(spec, pages=True, say=said.append)
    assert (told.faults, told.facts["files_not_read"]) == ([], 0)
    assert said == [f"reading data.train: {done} of 50 rows" for done in (16, 32, 48, 50)]
    code, _, err = god_ray_here("check", spec, "--pages")
    assert code == 0
    assert "were not read" not in err


def test_a_file_that_is_damaged_beyond_its_columns(tmp_path: Path) -> None:
    path = put(tmp_path / "a.parquet", {"x": np.random.default_rng(0).random(6000)}, row_group_size=2000)
    source = ParquetSource.open([str(path)])
    path.write_bytes(b"x" * path.stat().st_size)
    faults = read_pages(source).faults
    assert [(fault.file, fault.column) for fault in faults] == [(str(path), "x")] * 3


def test_many_columns_of_which_few_are_used(tmp_path: Path) -> None:
    """In a process of its own that may not take more than the whole file would need."""
    columns = {f"c{i}": np.full(200, i, np.float32) for i in range(5000)}
    put(tmp_path / "a.parquet", columns)
    source = ParquetSource.open([str(tmp_path)], ["c4999", "c7"])
    assert source.row_bytes == 8
    assert source.read(0, 0, 2).to_pydict() == {"c4999": [4999.0] * 2, "c7": [7.0] * 2, "__row": [0, 1]}
    assert len(ParquetSource.open([str(tmp_path)]).schema) == 5000


def test_very_wide_rows(tmp_path: Path) -> None:
    """40 kB each, all in one row group: two windows of each lane would hold them all."""
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(500 * 10_000, np.float32)), 10_000)
    put(tmp_path / "a.parquet", {"x": rows, "y": np.zeros(500, np.int64)})
    recipe = RECIPE.replace("Linear(4, 8)", "Linear(10_000, 8)")
    data = {"train": str(tmp_path / "a.parquet"), "memory_bytes": 4_000_000}
    told = check(project(tmp_path / "p", recipe, data=data, checkpoint={"every_steps": 9}))
    assert told.faults == []
    assert told.facts["memory_bytes"]["data"] == 500 * (40_000 + 8)
    said = "windows hold about 20,004,000 bytes, all lanes together: 2 for each lane, of 8 fragments"
    assert [text for text in told.warnings if text.startswith(said)]
    told = check(project(tmp_path / "p", recipe, data=data | {"memory_bytes": 6_000_000}, checkpoint={}))
    assert not [text for text in told.warnings if text.startswith("windows hold")]


READ_ALL = """
import sys, pyarrow
from god_ray import saying
from god_ray.errors import DataError
from god_ray.ingest.pages import read_pages
from god_ray.ingest.parquet import ParquetSource
pages = read_pages(ParquetSource.open([sys.argv[1]], allow_any=True))
assert pages.faults == []
print(pages.decoded_bytes, pyarrow.default_memory_pool().max_memory())
"""


def read_all(data: Path) -> tuple[int, int]:
    """(decoded bytes, the most that Arrow held at once), in a process of its own."""
    given = [sys.executable, "-c", READ_ALL, str(data)]
    decoded, most = subprocess.run(given, capture_output=True, text=True, check=True).stdout.split()
    return int(decoded), int(most)


def test_a_giant_row_group(tmp_path: Path) -> None:
    """It is decoded in batches through a small buffer; `check` says beforehand what it costs."""
    rows = 3_000_000
    put(tmp_path / "a.parquet", {"x": np.random.default_rng(0).random(rows)}, row_group_size=rows)
    decoded, most = read_all(tmp_path)
    assert decoded == rows * 16 + rows // 8  # with the rows' numbers, and a bit each that they are there
    assert most < 8 << 20 < (tmp_path / "a.parquet").stat().st_size
    told = check(large_for_check(tmp_path / "project", tmp_path / "a.parquet"))
    assert told.facts["largest_row_group"]["rows"] == rows
    assert any(f"has a row group of {rows} rows, 24 MB in the columns used" in text for text in told.warnings)


def test_a_small_file_with_huge_content(tmp_path: Path) -> None:
    """Numbers and short text are decoded a fragment at a time; what can't be held at all is refused."""
    rows = 4_000_000
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), ["x" * 100])
    path = put(tmp_path / "short/a.parquet", {"n": np.zeros(rows, np.int64), "t": words}, compression="zstd")
    assert path.stat().st_size < 100_000
    decoded, most = read_all(path.parent)
    assert decoded > rows * 116
    assert most < 32 << 20
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), ["x" * 1_000_000])
    path = put(tmp_path / "long/a.parquet", {"t": long}, compression="zstd")
    assert path.stat().st_size < 20_000
    text = refused(path.parent, tmp_path, preprocess=True)
    assert "DATA/a.parquet, column t: large_string: rows 0 to 16384 of row group 0 decode to 16.4 GB" in text
    assert "Fix: drop the column (data.columns), or write smaller row groups" in text


def test_uris(tmp_path: Path, s3: str) -> None:
    """The same files in a bucket: listed, opened and read alike, with the same fingerprint."""
    bucket, root = fs.FileSystem.from_uri(f"{s3}/sets")
    data = tmp_path / "sets" / "a set"
    for i in range(3):
        put(data / f"sub/part-{i}.parquet", {"x": np.arange(i * 10, i * 10 + 10.0)}, row_group_size=4)
    for name in SIDE:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data / "sub/part-0.parquet", data / name)
    fs.copy_files(str(tmp_path / "sets"), root, fs.LocalFileSystem(), bucket)
    local = ParquetSource.open([str(data)])
    uri = f"{s3}/sets/a%20set"
    for entry in (uri, f"{uri}/*", f"{uri}/**/*.parquet", f"{uri}/sub/part-[0-2].parquet"):
        source = ParquetSource.open([entry])
        assert source.manifest.num_rows == 30
        if "sub" not in entry:
            assert source.manifest.fingerprint == local.manifest.fingerprint
        for fragment, rows in enumerate(source.manifest.rows):
            assert source.read(fragment, 1, int(rows)).equals(local.read(fragment, 1, int(rows)))
    parts = [f"{uri}/sub/part-{i}.parquet" for i in range(3)]
    assert found(*parts, f"{uri}/_SUCCESS") == parts  # type: ignore[arg-type]
    for entry, said in {
        f"{uri}/_SUCCESS": "only a side file",
        f"{uri}/nothing": "no data there",
        f"{s3}-gone/x": "cannot be read|no data there",
        "s3://key:secret@bucket/x": "credentials stand in the URI",
    }.items():
        with pytest.raises(DataError, match=said) as caught:
            ParquetSource.open([entry])
        assert entry.replace("key:secret@", "") in str(caught.value)
        assert "secret" not in str(caught.value)
    put(tmp_path / "longer.parquet", {"x": np.arange(100.0)})
    source = ParquetSource.open([uri])
    with bucket.open_output_stream(f"{root}/a set/sub/part-1.parquet") as stream:
        stream.write((tmp_path / "longer.parquet").read_bytes())
    with pytest.raises(DataError, match="has changed"):
        source.read(4, 0, 1)


@pytest.fixture
def flaky(s3: str, s3_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    """The endpoint that AWS_* leads to, seen by those who are quick to try again and to give up."""
    quick = Patience(first_pause_s=0.01, longest_pause_s=0.05, stall_s=1.0, num_tries=4)
    monkeypatch.setattr(inputs, "Patience", lambda: quick)
    monkeypatch.setattr(inputs, "_retrying", Retrying(quick, inputs._opened.cache_clear))
    inputs._opened.cache_clear()
    with Flaky(s3_endpoint.address) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        yield proxy
    inputs._opened.cache_clear()


def four_files(folder: Path, s3: str) -> str:
    """The URI of forty rows in four files."""
    bucket, root = fs.FileSystem.from_uri(s3)
    for i in range(4):
        put(folder / f"set/{i}.parquet", {"x": np.arange(i * 10, i * 10 + 10.0)})
    fs.copy_files(str(folder / "set"), f"{root}/set", fs.LocalFileSystem(), bucket)
    return f"{s3}/set"


def rows_of(source: ParquetSource) -> list[float]:
    return [x for fragment in range(4) for x in source.read(fragment, 0, 10)["x"].to_pylist()]


WEATHER = [answer(500, "InternalError"), answer(503, "SlowDown"), reset, stall]


@pytest.mark.parametrize("fault", WEATHER, ids=["500", "503", "reset", "stall"])
def test_a_bucket_in_bad_weather(
    flaky: Flaky, s3: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    """It is tried again, with a line in the log, and the rows are the same.

    Three in a row fail: an HTTP client repeats a request by itself if the connection that it reused is reset.
    """
    place = four_files(tmp_path, s3)
    flaky.plan = lambda request: fault if len(flaky.seen) % 12 < 3 else None
    assert rows_of(ParquetSource.open([place])) == list(range(40))
    assert len(flaky.failed) >= 3
    assert "try 1 of 4 failed, again in" in caplog.text


def test_a_bucket_that_stays_away(flaky: Flaky, s3: str, tmp_path: Path) -> None:
    """So many tries and no more; then the file and the cause, not a word about what is in it."""
    place = four_files(tmp_path, s3)
    source = ParquetSource.open([place])
    flaky.plan = matching("/set/2.parquet", answer(503, "SlowDown"))
    with pytest.raises(DataError, match=r"/set/2.parquet cannot be read: .*tried 4 times"):
        rows_of(source)
    assert len(flaky.failed) == 4
    with pytest.raises(DataError, match=r"/set/2.parquet: it cannot be read \(.*tried 4 times\)"):
        ParquetSource.open([place])
    flaky.plan = only_key(lambda: "nobody's", answer(403, "AccessDenied"))
    with pytest.raises(DataError, match=r"/set cannot be read\n.*ACCESS_DENIED.*tried 3 times"):
        ParquetSource.open([place])


def test_a_bucket_whose_credentials_are_replaced(
    flaky: Flaky, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is listed, and while it is read."""
    place = four_files(tmp_path, s3)
    write = key_file(tmp_path, monkeypatch)

    def valid() -> str:
        """Another one after two requests."""
        return write("first" if len(flaky.seen) < before + 3 else "second")

    before = len(flaky.seen)
    write("first")
    flaky.plan = only_key(valid, answer(400, "ExpiredToken"))
    source = ParquetSource.open([place])
    assert {request.access_key for request in flaky.seen[before:]} == {"first", "second"}
    flaky.plan = only_key(lambda: write("third"), answer(400, "ExpiredToken"))
    assert rows_of(source) == list(range(40))
    assert flaky.seen[-1].access_key == "third"
