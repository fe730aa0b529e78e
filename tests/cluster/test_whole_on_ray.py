"""Fitting and caching on the cluster's CPUs: what comes out is what one process would make."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import ray.data
from laws.crew import DEBUG, Crew

from god_ray import api
from god_ray.errors import DataError
from god_ray.ingest import raydata, whole
from god_ray.ingest.fitted import to_json
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.sources.opening import Conversion, open_source
from god_ray.ingest.tasks import Fitting
from god_ray.runtime import equipment

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]
WANTED = {"x": "scale", "k": "categories"}


def double(table: pa.Table) -> pa.Table:
    return table.set_column(0, "x", pc.multiply(table["x"], 2))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ParquetSource:
    """12 tasks of 3 fragments."""
    monkeypatch.setattr(whole, "TASK_FRAGMENTS", 3)
    random = np.random.default_rng(0)
    table = pa.table({"x": random.normal(size=720), "k": random.integers(0, 9, 720), "y": range(720)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=20)
    return ParquetSource.open([str(tmp_path / "t.parquet")])


def parts(storage: Path) -> dict[str, str]:
    files = sorted((storage / ".prepared").rglob("*part-*"))
    return {str(file.relative_to(storage)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_what_the_cluster_makes_is_what_one_process_makes(source: ParquetSource, tmp_path: Path) -> None:
    here, there = (whole.fit([source], WANTED, double, on_ray, str) for on_ray in (False, True))
    assert to_json(here) == to_json(there)
    fitting = Fitting(double, here)
    made = []
    for on_ray, storage in ((False, tmp_path / "here"), (True, tmp_path / "there")):
        kept = whole.cached(source, fitting, "v1", str(storage), on_ray, str)
        assert kept.manifest.fingerprint == source.manifest.fingerprint
        made.append(parts(storage))
    assert made[0] == made[1]
    assert len(made[0]) == 12


def test_a_fault_in_the_data_is_named_as_it_is_here(source: ParquetSource, tmp_path: Path) -> None:
    table = pq.read_table(tmp_path / "t.parquet")
    gaps = pa.array([None if i == 700 else 1.0 for i in range(720)])
    pq.write_table(table.set_column(0, "x", gaps), tmp_path / "u.parquet", row_group_size=20)
    gappy = ParquetSource.open([str(tmp_path / "u.parquet")], allow_any=True)
    for on_ray in (False, True):
        with pytest.raises(DataError, match=r"u\.parquet: column x holds 1 nulls, and data\.fit makes scale"):
            whole.fit([gappy], WANTED, None, on_ray, str)


def test_when_ray_data_fails_the_rest_is_done_here(
    source: ParquetSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = to_json(whole.fit([source], WANTED, None, False, str))
    each = raydata.each

    def breaks_off(*given: Any) -> Iterator[pa.Table]:
        for number, table in enumerate(each(*given)):
            if number == 5:
                raise raydata.Failed("a node is gone")
            yield table

    monkeypatch.setattr(raydata, "each", breaks_off)
    with caplog.at_level(logging.WARNING, "god_ray.ingest"):
        assert to_json(whole.fit([source], WANTED, None, True, str)) == expected
    assert "the rest is done here: a node is gone" in caplog.text


def test_a_ray_dataset_is_kept_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        "import ray.data\n"
        "def rows():\n"
        "    return ray.data.range(5000, override_num_blocks=7).map_batches(\n"
        "        lambda table: table.append_column('x', table['id']), batch_format='pyarrow')\n"
    )
    place = Conversion(str(tmp_path / "runs"))
    kept = open_source([f"{tmp_path / 'data.py'}:rows"], None, place)
    table = pa.concat_tables([pq.read_table(path) for path in kept.manifest.files])
    assert table.to_pydict() == {"id": list(range(5000)), "x": list(range(5000))}
    assert isinstance(ray.data.range(1), ray.data.Dataset)


def test_a_run_that_is_fitted_and_cached_by_ray(
    crew: Crew, tmp_path: Path, quick_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers, everything through Ray Data, against one process that does all of it by itself."""
    from laws.test_fitted import FIT, RECIPE, rows

    pq.write_table(rows(98, 0), tmp_path / "train.parquet", row_group_size=17)
    spec: dict[str, Any] = {
        "recipe": str(RECIPE),
        "data": {
            "train": str(tmp_path / "train.parquet"),
            "preprocess": f"{RECIPE}:prepare",
            "fit": FIT,
            "cache": "disk",
        },
        "batch_size": 16,
        "epochs": 3,
        "workers": 2,
        "determinism": {"isa": crew.isa},
        "storage": str(quick_disk / "runs"),
        "name": f"fitted-{os.getpid()}",
    }
    monkeypatch.setattr(equipment, "QUICK_BYTES", 0)
    said: list[str] = []
    result = api.train(spec, say=said.append)
    assert result.state == "SUCCEEDED", result.reason
    assert said == ["waiting for Ray, to go through the data"] * 2
    alone, _ = crew.train({**spec, "name": spec["name"] + "-alone", "storage": str(tmp_path / "runs")}, DEBUG)
    assert result.digest == alone.digest
    assert parts(quick_disk / "runs").items() >= parts(tmp_path / "runs").items()
