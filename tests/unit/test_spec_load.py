"""Which value wins and where it came from; paths; the resolved spec loads again to an equal one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from god_ray.errors import SpecError
from god_ray.spec import LoadedSpec, load, resolved_yaml

SPEC = """\
recipe: recipe.py
data:
  train: [a.parquet, /data/b.parquet, s3://bucket/c.parquet]
  preprocess: sub/prepare.py:clean
batch_size: 1e2
epochs: 3
workers: {min: 1, max: 2, cpus: 2}
config: {lr: 1e-3, model: {depth: 2, width: 8}, when: 2025-01-01}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "project"
    folder.mkdir()
    path = folder / "run.yaml"
    path.write_text(SPEC)
    return path


def reload(loaded: LoadedSpec, folder: Path) -> LoadedSpec:
    folder.mkdir(exist_ok=True)
    (folder / "spec.yaml").write_text(resolved_yaml(loaded), encoding="utf-8")
    return load(folder / "spec.yaml")


def test_set_wins_over_python_over_the_file_over_the_default(file: Path) -> None:
    overrides = ["seed=3", "config.lr=1e-2", "config.model.depth=5", "workers.max=4", "seed=4"]
    loaded = load(file, overrides, seed=2, lanes=8, config={"lr": 5.0, "extra": (1, 2)})
    spec = loaded.spec
    assert (spec.seed, spec.lanes, spec.batch_size, spec.clip_norm) == (4, 8, 100, None)
    assert (spec.workers.min, spec.workers.max, spec.workers.cpus) == (1, 4, 2.0)
    assert spec.config == {
        "lr": 0.01,
        "model": {"depth": 5, "width": 8},
        "when": "2025-01-01",
        "extra": [1, 2],
    }
    origins = loaded.origins
    assert origins["batch_size"] == "run.yaml:5"
    assert origins["data.train"] == "run.yaml:3"
    assert origins["config.when"] == origins["config.model.width"] == "run.yaml:8"
    assert origins["seed"] == origins["config.lr"] == origins["config.model.depth"] == "--set"
    assert origins["workers.max"] == "--set"
    assert origins["workers.min"] == "run.yaml:7"
    assert origins["lanes"] == origins["config.extra"] == "python"
    assert origins["clip_norm"] == origins["stop_when"] == origins["checkpoint.keep"] == "default"


def test_a_shorthand_changes_only_what_it_names(file: Path) -> None:
    workers = load(file, ["workers=3:4"]).spec.workers
    assert (workers.min, workers.max, workers.cpus) == (3, 4, 2.0)
    workers = load(file, workers=3).spec.workers
    assert (workers.min, workers.max, workers.cpus) == (3, 3, 2.0)
    determinism = load(file, ["determinism.isa=avx2", "determinism=relaxed"]).spec.determinism
    assert (determinism.mode, determinism.isa) == ("relaxed", "avx2")


def test_values_below_config_are_replaced_whole_and_null_takes_away(file: Path) -> None:
    spec = load(file, ["config.model={kind: mlp}", "epochs=null", "steps=1e3", "data.eval=t.parquet"]).spec
    assert spec.config["model"] == {"kind": "mlp"}
    assert (spec.epochs, spec.steps) == (None, 1000)
    overrides = ["data.eval=t", "stop_when.metric=acc", "stop_when.mode=max", "stop_when=null"]
    assert load(file, overrides).spec.stop_when is None
    found = load(file, overrides[:3]).spec.stop_when
    assert found is not None
    assert (found.metric, found.mode, found.patience) == ("acc", "max", 3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("no", "no"),
        ("", None),
        ("[1e-3, x]", [0.001, "x"]),
        ("{a: 1, b: {c: 2}}", {"a": 1, "b": {"c": 2}}),
        ("a=b", "a=b"),
        ("'5'", "5"),
        ("12:30", "12:30"),
    ],
)
def test_values_of_set_are_yaml(file: Path, text: str, value: object) -> None:
    assert load(file, [f"config.new.x={text}"]).spec.config["new"] == {"x": value}


def test_search_keys_keep_their_dots(file: Path) -> None:
    overrides = ["sweep.metric=loss", "sweep.search.config.lr={choice: [1e-3]}"]
    loaded = load(file, [*overrides, "sweep.search={batch_size: {choice: [64]}}", "data.eval=e"])
    assert loaded.spec.sweep is not None
    assert list(loaded.spec.sweep.search) == ["config.lr", "batch_size"]
    assert loaded.origins["sweep.search.config.lr"] == "--set"


def test_paths_start_at_the_specs_folder_and_storage_at_the_current_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    here, folder = file.parent.parent, file.parent
    loaded = load("project/run.yaml", ["data.eval=~/t.parquet", "init_from=../w.safetensors"])
    spec = loaded.spec
    assert (loaded.path, loaded.base) == (file, folder)
    assert spec.recipe == f"{folder}/recipe.py"
    assert spec.data.train == [f"{folder}/a.parquet", "/data/b.parquet", "s3://bucket/c.parquet"]
    assert spec.data.preprocess == f"{folder}/sub/prepare.py:clean"
    assert spec.data.eval == ["/home/me/t.parquet"]
    assert spec.init_from is not None
    assert spec.init_from.path == f"{folder}/../w.safetensors"
    assert spec.storage == f"{here}/runs"
    assert load(file, storage="s3://bucket/runs").spec.storage == "s3://bucket/runs"


def test_a_mapping_instead_of_a_file(file: Path) -> None:
    given: dict[str, Any] = {
        "recipe": Path("r.py"),
        "data": {"train": ("a", "b")},
        "batch_size": 8,
        "steps": 1,
    }
    loaded = load(given, ["seed=1"], lanes=2)
    here = file.parent.parent
    assert (loaded.path, loaded.base) == (None, here)
    assert loaded.spec.recipe == f"{here}/r.py"
    assert loaded.spec.data.train == [f"{here}/a", f"{here}/b"]
    assert loaded.origins["recipe"] == loaded.origins["lanes"] == "python"
    assert given == {"recipe": Path("r.py"), "data": {"train": ("a", "b")}, "batch_size": 8, "steps": 1}


def test_numbers_of_numpy_are_plain_numbers(file: Path) -> None:
    np = pytest.importorskip("numpy")
    spec = load(file, seed=np.int64(5), config={"x": np.float32(0.5)}).spec
    assert (spec.seed, spec.config["x"]) == (5, 0.5)
    assert type(spec.seed) is int


def test_a_spec_is_frozen_and_pickles(file: Path) -> None:
    loaded = load(file)
    with pytest.raises(ValidationError):
        loaded.spec.seed = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(loaded)) == loaded


def test_the_resolved_spec_names_every_origin_and_loads_to_the_same(file: Path, tmp_path: Path) -> None:
    loaded = load(
        file,
        ["seed=3", "sweep={metric: loss, search: {config.lr: {loguniform: [1e-4, 1]}}, asha: {}}"],
        checkpoint={"keep_best": {"metric": "acc"}},
        data={"eval": "t.parquet"},
        stop_when={"metric": "acc"},
    )
    text = resolved_yaml(loaded)
    assert "batch_size: 100  # run.yaml:5\n" in text
    assert "seed: 3  # --set\n" in text
    assert "  keep: 3  # default\n" in text
    assert "    config.lr: {loguniform: [0.0001, 1.0]}  # --set\n" in text
    assert "  when: 2025-01-01  # run.yaml:8\n" in text
    for line in text.splitlines()[1:]:
        assert line.endswith(":") or "  # " in line
    again = reload(loaded, tmp_path / "elsewhere")
    assert again.spec == loaded.spec
    assert resolved_yaml(again).count("default") == 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        ["no", "1e3", "0x1", "~", "null", "2025-01-01", "a: b", "#", "- x", "\u2028", "é", "😀", "\x85", "<<"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    config=st.dictionaries(st.text(max_size=10), JSON, max_size=4), name=st.from_regex(r"\A[a-z0-9]{1,8}\Z")
)
def test_any_free_value_survives_the_round_trip(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    try:
        loaded = load(
            {"recipe": "r.py", "data": {"train": "a"}, "batch_size": 8, "steps": 1}, config=config, name=name
        )
    except SpecError:
        assert "${" in str(config)
        return
    again = reload(loaded, tmp_path / "elsewhere")
    assert again.spec == loaded.spec
    assert repr(again.spec.config) == repr(loaded.spec.config)  # 1.0 stays a float, True a bool
