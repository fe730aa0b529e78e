"""What is fitted, and where its rows come from, does not depend on workers, caches or resumes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3 import Endpoint
from safetensors import safe_open

from god_ray import api
from god_ray.errors import DataError, ResumeRefused, RunNotFound
from god_ray.ingest import whole
from god_ray.ingest.fitted import from_json
from god_ray.loop.request import Request
from god_ray.runtime.check import check
from god_ray.runtime.model import export, load_model
from god_ray.runtime.run_folder import RunFolder
from god_ray.storage.store import open_store, write_bytes
from laws.crew import DEBUG, TESTS, Crew, ledger

SpecOf = Callable[..., dict[str, Any]]
RECIPE = TESTS / "recipes" / "fitted.py"
FIT = {"kind": "categories", "x": "scale", "square": "scale", "text": {"vocabulary": 6}}


def rows(num_rows: int, seed: int, kinds: str = "abcde") -> pa.Table:
    random = np.random.default_rng(seed)
    x = np.where(random.random(num_rows) < 0.1, np.nan, random.normal(3.0, 2.0, num_rows))
    texts = [" ".join(random.choice(list("pqrstuvwxyz"), random.integers(0, 5))) for _ in range(num_rows)]
    return pa.table(
        {
            "x": pa.array(x, from_pandas=True),
            "kind": pa.array(random.choice(list(kinds), num_rows)).dictionary_encode(),
            "text": texts,
            "y": random.normal(size=num_rows).astype(np.float32),
        }
    )


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    """Two files whose dictionaries give other codes to the same values, and an evaluation set."""
    (tmp_path / "train").mkdir()
    pq.write_table(rows(60, 0, "abc"), tmp_path / "train" / "0.parquet", row_group_size=17)
    pq.write_table(rows(38, 1, "cdea"), tmp_path / "train" / "1.parquet", row_group_size=17)
    pq.write_table(rows(21, 2), tmp_path / "eval.parquet")
    return {
        "train": str(tmp_path / "train"),
        "eval": str(tmp_path / "eval.parquet"),
        "preprocess": f"{RECIPE}:prepare",
        "fit": FIT,
    }


def fitted_spec(spec_of: SpecOf, data: dict[str, Any], **fields: Any) -> dict[str, Any]:
    train = data.pop("train")
    return spec_of({}, train, recipe="fitted.py", epochs=3, data=data, **fields)


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
def test_the_same_bits_with_and_without_the_cache(
    crew: Crew, spec_of: SpecOf, data: dict[str, Any], shuffle: str, tmp_path: Path
) -> None:
    seen = set()
    storage = str(tmp_path / shuffle)
    for workers, cache in ((DEBUG, "none"), (1, "disk"), (2, "none"), (3, "disk"), (DEBUG, "disk")):
        spec = fitted_spec(
            spec_of, {**data, "shuffle": shuffle, "window": 2, "cache": cache}, storage=storage
        )
        result, _ = crew.train(spec, workers)
        assert result.state == "SUCCEEDED", result.reason
        steps = [(line["loss"], line["digest"], line["row_checksum"]) for line in ledger(result)]
        seen.add((result.digest, result.metrics["off"], tuple(steps)))
    assert len(seen) == 1
    assert len(list((tmp_path / shuffle / ".prepared").iterdir())) == 3, "two copies, made once"


def test_a_resumed_run_keeps_what_was_fitted(
    crew: Crew, spec_of: SpecOf, data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was moved to; with the files in another order it would be another run."""
    spec = fitted_spec(spec_of, dict(data), checkpoint={"every_s": None, "every_steps": 4})
    whole_run, _ = crew.train(spec, 1)
    spec = {**spec, "name": spec["name"] + "-stopped"}
    stopped, _ = crew.train(spec, 2, asks=[(6, Request("stop"))])
    assert stopped.state == "STOPPED"
    moved = tmp_path / "elsewhere" / stopped.name
    shutil.copytree(stopped.folder, moved)
    monkeypatch.setattr(whole, "fit", lambda *_: pytest.fail("it was fitted when the run was made"))
    result, _ = crew.resume(api.Result(**{**vars(stopped), "folder": moved}), 3)
    assert result.digest == whole_run.digest
    kinds = from_json((moved / "fitted.json").read_text())["kind"].values  # type: ignore[union-attr]
    assert kinds == ("a", "b", "c", "d", "e")


def test_a_run_that_was_copied_into_a_bucket_keeps_what_was_fitted(
    crew: Crew,
    spec_of: SpecOf,
    data: dict[str, Any],
    s3: str,
    s3_endpoint: Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Resumed there by a machine that has never seen its folder."""
    spec = fitted_spec(spec_of, dict(data), checkpoint={"every_s": None, "every_steps": 4})
    whole_run, _ = crew.train(spec, 1)
    stopped, _ = crew.train({**spec, "name": spec["name"] + "-stopped"}, 2, asks=[(6, Request("stop"))])
    assert stopped.state == "STOPPED"
    bucket = open_store(f"{s3}/moved")
    for path in stopped.folder.rglob("*"):
        if path.is_file():
            write_bytes(bucket, path.relative_to(stopped.folder).as_posix(), path.read_bytes())
    shutil.rmtree(stopped.folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    monkeypatch.setattr(whole, "fit", lambda *_: pytest.fail("it was fitted when the run was made"))
    there = api.Result(**{**vars(stopped), "name": f"{s3}/moved"})
    environ = {**s3_endpoint.environment(), "XDG_CACHE_HOME": str(tmp_path / "another machine")}
    result, _ = crew.resume(there, DEBUG, environ={0: environ})
    assert (result.state, result.place) == ("SUCCEEDED", f"{s3}/moved")
    assert result.digest == whole_run.digest


def test_it_is_exported_with_the_model(
    crew: Crew, spec_of: SpecOf, data: dict[str, Any], tmp_path: Path
) -> None:
    result, _ = crew.train(fitted_spec(spec_of, dict(data)), 1)
    folder = RunFolder(result.folder)
    exported = export(folder, tmp_path / "m.safetensors")
    with safe_open(exported.path, "pt") as opened:
        text = opened.metadata()["fitted"]
    assert text == (result.folder / "fitted.json").read_text()
    assert load_model(folder).kind.num_embeddings == 5  # type: ignore[union-attr]


def test_what_was_fitted_is_guarded(crew: Crew, spec_of: SpecOf, data: dict[str, Any]) -> None:
    spec = fitted_spec(spec_of, dict(data), checkpoint={"every_s": None, "every_steps": 4})
    result, _ = crew.train(spec, 1, asks=[(6, Request("stop"))])
    path, storage = result.folder / "fitted.json", result.folder.parent
    text = path.read_text()
    path.write_text(text.replace('"a"', '"A"'))
    with pytest.raises(RunNotFound, match=r"fitted\.json has changed since the run was made"):
        api.resume(result.name, storage, debug=True)
    path.write_text(text[:-9])
    with pytest.raises(RunNotFound, match=r"fitted\.json is not what was fitted"):
        api.resume(result.name, storage, debug=True)
    path.unlink()
    with pytest.raises(RunNotFound, match=r"fitted\.json cannot be read: No such file"):
        api.resume(result.name, storage, debug=True)
    path.write_text(text)
    resolved = result.folder / "spec.yaml"
    resolved.write_text(resolved.read_text().replace("vocabulary: 6", "vocabulary: 7"))
    with pytest.raises(ResumeRefused, match=r"data\.fit: .* became "):
        api.resume(result.name, storage, debug=True)


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_an_unseen_category_is_refused_before_the_run(
    spec_of: SpecOf, data: dict[str, Any], tmp_path: Path, cache: str
) -> None:
    pq.write_table(rows(21, 2, "aZ"), tmp_path / "eval.parquet")
    spec = fitted_spec(spec_of, {**data, "cache": cache})
    spec["determinism"]["isa"] = None
    said = r"eval\.parquet: column kind holds 'Z', which no row of the training set has"
    with pytest.raises(DataError, match=said):
        api.train(spec, debug=True)
    assert not Path(spec["storage"], spec["name"]).exists()
    (tmp_path / "run.yaml").write_text(json.dumps(spec))
    assert any("holds 'Z'" in fault.what for fault in check(tmp_path / "run.yaml").faults)


def test_check_fits_a_large_set_on_the_rows_it_tries(
    spec_of: SpecOf, data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = fitted_spec(spec_of, dict(data))
    spec["determinism"]["isa"] = None
    (tmp_path / "run.yaml").write_text(json.dumps(spec))
    checked = check(tmp_path / "run.yaml")
    assert not checked.faults
    assert not [text for text in checked.warnings if "data.fit" in text]
    assert checked.facts["columns"]["kind"]["dtype"] == "int64"
    monkeypatch.setattr("god_ray.runtime.equipment.QUICK_BYTES", 100)
    checked = check(tmp_path / "run.yaml")
    assert not checked.faults
    assert "data.fit was tried on 16 rows; the run fits it on all of them" in checked.warnings
