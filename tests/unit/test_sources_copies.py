"""A prepared copy is there as a whole or not at all, is made once, and is made again when it has to be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from god_ray.errors import DataError, UserError
from god_ray.ingest.listing import list_files
from god_ray.ingest.sources import copies
from god_ray.ingest.sources.opening import Conversion, open_source, steady
from god_ray.ingest.sources.opening import stamps as stamps_of

OPEN = """
import sys
from god_ray.ingest.sources.opening import Conversion, open_source
print(open_source([sys.argv[1]], None, Conversion(sys.argv[2])).manifest.fingerprint)
"""


def opened(path: Path, storage: Path) -> str:
    return open_source([str(path)], None, Conversion(str(storage))).manifest.fingerprint


def opening(path: Path, storage: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OPEN, str(path), str(storage)], stdout=subprocess.PIPE, text=True
    )


def write(path: Path, num_rows: int) -> Path:
    path.write_text("x,y\n" + "".join(f"{i},{i / 2}\n" for i in range(num_rows)))
    return path


def stamps(storage: Path) -> dict[str, int]:
    files = (path for path in (storage / ".prepared").rglob("*") if path.is_file())
    return {str(path.relative_to(storage)): path.stat().st_mtime_ns for path in files}


def test_a_copy_is_used_again_while_its_files_are_the_same(tmp_path: Path) -> None:
    path, storage = write(tmp_path / "t.csv", 100), tmp_path / "runs"
    first = opened(path, storage)
    before = stamps(storage)
    assert [Path(name).name for name in sorted(before)] == ["_copy.json", "part-00000.parquet"]
    os.utime(path)  # another time, the same content
    assert opened(path, storage) == first
    assert stamps(storage) == before
    write(path, 101)
    assert opened(path, storage) != first
    assert len(stamps(storage)) == 4
    write(path, 100)
    assert opened(path, storage) == first


def test_a_large_file_is_told_by_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("god_ray.ingest.sources.progress.HASHED_BYTES", 10)
    path, storage = write(tmp_path / "t.csv", 100), tmp_path / "runs"
    first = opened(path, storage)
    before = stamps(storage)
    assert opened(path, storage) == first
    assert stamps(storage) == before
    os.utime(path, ns=(0, 0))
    assert opened(path, storage) == first, "the same rows in a new copy"
    assert len(stamps(storage)) == 4


@pytest.mark.parametrize("damage", ["part gone", "part cut", "manifest gone", "manifest torn", "no manifest"])
def test_a_damaged_copy_is_made_again(tmp_path: Path, damage: str) -> None:
    path, storage = write(tmp_path / "t.csv", 100), tmp_path / "runs"
    first = opened(path, storage)
    part = next(storage.rglob("part-*"))
    manifest = part.with_name("_copy.json")
    if damage == "part gone":
        part.unlink()
    elif damage == "part cut":
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "manifest gone":
        manifest.unlink()
    elif damage == "no manifest":
        manifest.write_text("[]")
    else:
        manifest.write_text(manifest.read_text()[:-9])
    assert opened(path, storage) == first
    assert json.loads(manifest.read_text())["parts"] == {part.name: part.stat().st_size}


def test_killed_in_the_middle_nothing_half_is_taken(tmp_path: Path) -> None:
    """The reader blocks on a pipe in the midst of its second pass; the copy has parts, and no manifest."""
    storage = tmp_path / "runs"

    def tables() -> Iterator[pa.Table]:
        for i in range(300):
            yield pa.table({"x": pa.array(range(i * 16384, (i + 1) * 16384))})

    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    child = os.fork()
    if not child:

        def stopped() -> Iterator[pa.Table]:
            for number, table in enumerate(tables()):
                if number == 200:
                    open(fifo, "w").close()
                    signal.pause()
                yield table

        copies.make(copies.open_copies(str(storage)), "key", stopped(), [])
        os._exit(1)
    open(fifo).close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    store = copies.open_copies(str(storage))
    assert len(store.list("key")) == 3, "of 64 row groups each"
    assert copies.find(store, "key") is None
    copy = copies.make(store, "key", tables(), ["said"])
    assert copies.find(store, "key") == copy
    assert copy.notes == ("said",)
    assert [pq.read_metadata(path).num_rows for path in copy.paths] == [2**20] * 4 + [44 * 16384]


def test_two_at_once_do_not_hurt_each_other(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 200_000)
    alone = opened(path, tmp_path / "alone")
    both = [opening(path, tmp_path / "runs") for _ in range(2)]
    assert [child.communicate()[0].strip() for child in both] == [alone, alone]
    assert [child.returncode for child in both] == [0, 0]
    assert opened(path, tmp_path / "runs") == alone


def test_row_groups_are_smaller_where_rows_are_wide(tmp_path: Path) -> None:
    store = copies.open_copies(str(tmp_path))
    wide = pa.array([bytes(1 << 20)] * 50)
    copy = copies.make(store, "wide", (pa.table({"x": wide}) for _ in range(4)), [])
    about = pq.read_metadata(copy.paths[0])
    sizes = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
    assert sizes == [63, 63, 63, 11]


def test_storage_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(
        UserError, match=r"the prepared copy of the data below .*runs/\.prepared cannot be had"
    ):
        opened(write(tmp_path / "t.csv", 3), tmp_path / "runs")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"parts": 1, "notes": []}', '{"parts": {}}', "null"])
def test_a_manifest_that_is_none_is_written_again(tmp_path: Path, text: str) -> None:
    path, storage = write(tmp_path / "t.csv", 100), tmp_path / "runs"
    first = opened(path, storage)
    (manifest,) = (storage / ".prepared").rglob("_copy.json")
    whole = manifest.read_text()
    manifest.write_text(text)
    assert opened(path, storage) == first
    assert manifest.read_text() == whole


@pytest.mark.parametrize("ends", ["well", "in a fault"])
def test_a_file_that_grows_while_it_is_read_has_no_copy(tmp_path: Path, ends: str) -> None:
    """Else rows of another state would be found under the key of what the file was before."""
    path = write(tmp_path / "t.csv", 10)
    files = list_files([str(path)])

    def tables(changes: bool) -> Iterator[pa.Table]:
        yield pa.table({"x": [0]})
        if changes:
            path.write_text(path.read_text() + "10,5.0\n")
        if ends == "in a fault":
            raise ValueError("a value that was not there at first")

    with pytest.raises(DataError, match=r"t\.csv has changed while it was read"):
        copies.make(copies.open_copies(str(tmp_path)), "k", steady(tables(True), files, stamps_of(files)), [])
    assert copies.find(copies.open_copies(str(tmp_path)), "k") is None
    calm = steady(tables(False), files, stamps_of(files))
    if ends == "well":
        assert [table.num_rows for table in calm] == [1]
    else:
        with pytest.raises(ValueError, match="not there at first"):
            list(calm)
