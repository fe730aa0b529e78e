"""Places in a spec, resolved once: whatever was typed, wherever the command ran, whoever reads it later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from god_ray.errors import SpecError, UserError
from god_ray.runtime.run_folder import RunFolder
from god_ray.spec import load, resolved_yaml
from god_ray.storage.store import open_store, write_bytes

SPEC = "recipe: recipe.py\ndata: {train: rows.parquet}\nbatch_size: 8\nepochs: 1\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in; the spec is in `project` beside it, the home folder too."""
    for name in ("here", "project", "home", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "project/run.yaml").write_text(SPEC)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


WRITTEN = [
    ("./out", "{base}/out"),
    ("out", "{base}/out"),
    ("ckpt/../ckpt", "{base}/ckpt/../ckpt"),
    ("with space/50% of it", "{base}/with space/50% of it"),
    ("%41", "{base}/%41"),
    ("~/ckpt", "{top}/home/ckpt"),
    ("a~b/~", "{base}/a~b/~"),
    ("/abs/a%20b", "/abs/a%20b"),
    ("file:///abs/a%20b", "/abs/a b"),
    ("file:///abs/100%25", "/abs/100%"),
    ("file:///abs/what?#1%", "/abs/what?#1%"),
    ("file://localhost/abs/x", "/abs/x"),
    ("file:/abs/x", "/abs/x"),
    ("file:sub/x", "{base}/sub/x"),
    ("s3://bucket/a%20b?region=x", "s3://bucket/a%20b?region=x"),
    ("gs://bucket/~", "gs://bucket/~"),
]


@pytest.mark.parametrize(("typed", "meant"), WRITTEN)
def test_a_place_is_resolved_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, typed: str, meant: str
) -> None:
    top, project = here.parent, here.parent / "project"
    fields = {"storage": typed, "data": {"train": [typed], "eval": typed}}
    loaded = load("../project/run.yaml", **fields)
    assert loaded.spec.storage == meant.format(base=here, top=top)
    # The spec was named through "..": that stays in what hangs on its folder.
    in_project = meant.format(base=here / "../project", top=top)
    assert loaded.spec.data.train == loaded.spec.data.eval == [in_project]
    (project / "spec.yaml").write_text(resolved_yaml(loaded))
    monkeypatch.chdir(top / "elsewhere")
    monkeypatch.setenv("HOME", "/another")
    again = load(project / "spec.yaml").spec
    assert (again.storage, again.data.train) == (loaded.spec.storage, loaded.spec.data.train)


@pytest.mark.parametrize("typed", ["out", "ckpt/../ckpt", "50% of it", "link/runs", "file:out/a%20b"])
def test_what_was_resolved_is_one_folder_from_everywhere(
    here: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    (here / "link").symlink_to(here.parent / "elsewhere")
    storage = load("../project/run.yaml", storage=typed).spec.storage
    write_bytes(open_store(storage), "run/x", b"1")
    monkeypatch.chdir(here.parent / "elsewhere")
    assert open_store(storage).read("run/x") == b"1"
    assert open_store(os.path.realpath(storage)).list() == {"run/x": 1}


def test_a_file_uri_with_a_host_is_refused_everywhere_at_once(here: Path) -> None:
    wrong = "file://data/x.parquet"
    with pytest.raises(SpecError) as caught:
        load(
            "../project/run.yaml", storage=wrong, init_from=wrong, data={"train": ["a", wrong], "eval": wrong}
        )
    problems = caught.value.data["problems"]
    keys = {problem.key for problem in problems}
    assert keys == {"storage", "init_from.path", "data.train[1]", "data.eval[0]"}
    assert all(
        "names the machine 'data'" in problem.rule and "three slashes" in problem.fix for problem in problems
    )
    with pytest.raises(ValueError, match="names the machine 'data'"):
        open_store(wrong)


@pytest.mark.parametrize("key", ["storage", "init_from", "data.train"])
def test_credentials_in_a_place_are_refused_and_not_shown(here: Path, key: str) -> None:
    """Every place is kept in run.json and spec.yaml."""
    fields = {key: "s3://KEY:TOPSECRET@bucket/x"}
    with pytest.raises(SpecError, match=r"credentials stand in the URI") as caught:
        load("../project/run.yaml", tuple(f"{k}={v}" for k, v in fields.items()))
    assert key in str(caught.value)
    assert "TOPSECRET" not in str(caught.value)
    with pytest.raises(UserError, match=r"^s3://bucket/x/demo: credentials stand in the URI") as caught_too:
        RunFolder.find("demo", fields[key])
    assert "TOPSECRET" not in str(caught_too.value)
