"""A run that starts from weights: refused before it is made, written down, and held to them on resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_runs import RECIPE, SPEC, STEPS, project, trained, write_rows

from god_ray import api
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import ResumeRefused
from god_ray.monitor.ledger import Ledger
from god_ray.runtime.run_folder import RunFolder
from god_ray.storage.local import LocalStore

Call = Callable[..., tuple[int, str, str]]
WIDER = RECIPE.replace("Linear(8, 3)", "Linear(8, 5)")


def test_weights_are_taken_the_optimizer_starts_anew(tmp_path: Path, finished_run: RunFolder) -> None:
    spec = project(tmp_path)
    one = {"steps": 1, "epochs": None}
    warm = trained(spec, tmp_path / "runs", "warm", init_from=str(finished_run.path), **one)
    after = CheckpointStore(LocalStore(warm.checkpoints), 0).load(1)[0]
    assert after.optimizer["0.weight::step"].item() == 1.0


def test_a_whole_start_is_the_same_run_from_every_source(
    tmp_path: Path, finished_run: RunFolder, god_ray_here: Call
) -> None:
    spec = project(tmp_path)
    god_ray_here("export", finished_run.path, "--to", tmp_path / "w.safetensors")
    digests = set()
    for name, source in (("a", finished_run.path), ("b", tmp_path / "w.safetensors")):
        run = trained(spec, tmp_path / "runs", name, init_from=str(source))
        digests.add(run.read()["result"]["digest"])
    assert len(digests) == 1
    assert digests != {finished_run.read()["result"]["digest"]}


def test_a_part_is_told_by_check_train_and_status(
    tmp_path: Path, finished_run: RunFolder, god_ray_here: Call
) -> None:
    spec = project(tmp_path, WIDER, init_from={"path": str(finished_run.path), "partial": True})
    told = (
        "2 of 4 tensors taken; shape differs: 2.weight [3, 8] (the file's), [5, 8] (the model's), "
        "2.bias [3] (the file's), [5] (the model's)"
    )
    newest = finished_run.checkpoints / f"step-{STEPS:08d}"
    code, out, _ = god_ray_here("check", spec)
    assert code == 0
    assert f"weights        {told}; from {finished_run.path}\n" in out
    code, _, err = god_ray_here("train", spec, "--debug", "--name", "part")
    assert code == 0
    assert f"part RUNNING: training in one process; init_from: {told}" in err
    code, out, _ = god_ray_here("status", "part")
    assert f"weights        {told}; from {newest}\n" in out
    code, out, _ = god_ray_here("status", "part", "--json")
    facts = json.loads(out)["init_from"]
    assert (facts["path"], facts["num_taken"], facts["num_tensors"]) == (str(newest), 2, 4)
    assert (facts["missing"], facts["unknown"]) == ([], [])
    assert [shape.split()[0] for shape in facts["shapes"]] == ["2.weight", "2.bias"]


def test_a_misfit_is_refused_before_a_run_is_made(
    tmp_path: Path, finished_run: RunFolder, god_ray_here: Call
) -> None:
    spec = project(tmp_path, WIDER, init_from=str(finished_run.path))
    code, out, err = god_ray_here("train", spec, "--debug", "--name", "part")
    assert (code, out) == (2, "")
    assert "does not fit the model: 2 of 4 fit." in err
    assert "partial: true" in err
    assert not Path("runs").exists()
    code, _, err = god_ray_here("check", spec)
    assert code == 2
    assert "does not fit the model: 2 of 4 fit." in err


def test_a_link_is_followed_once(tmp_path: Path, finished_run: RunFolder) -> None:
    (tmp_path / "latest").symlink_to(finished_run.path)
    run = trained(project(tmp_path / "p"), tmp_path / "runs", "a", init_from="../latest")
    newest = finished_run.checkpoints.resolve() / f"step-{STEPS:08d}"
    assert run.read()["spec"]["init_from"]["path"] == str(newest)


def test_a_run_without_a_checkpoint_is_held_to_its_weights(tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    save_file(model.state_dict(), weights)
    spec = project(tmp_path)
    run = trained(spec, tmp_path / "runs", "a", init_from=str(weights))
    digest = run.read()["result"]["digest"]

    def begin_again() -> None:
        """As if it had been killed before its first checkpoint."""
        shutil.rmtree(run.checkpoints)
        run.update(state="RUNNING", result=None, durable_step=None)

    begin_again()
    again = api.resume("a", tmp_path / "runs", debug=True)
    assert (again.state, again.digest) == ("SUCCEEDED", digest)

    begin_again()
    save_file({name: value + 1 for name, value in model.state_dict().items()}, weights)
    with pytest.raises(ResumeRefused, match="init_from of run a has changed") as caught:
        api.resume("a", tmp_path / "runs", debug=True)
    assert "put the file back" in caught.value.fix


def test_once_there_is_a_checkpoint_the_weights_are_not_needed(tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    save_file(model.state_dict(), weights)
    run = trained(project(tmp_path), tmp_path / "runs", "a", init_from=str(weights))
    weights.unlink()
    shutil.rmtree(run.checkpoints / f"step-{STEPS:08d}")
    run.update(state="RUNNING", result=None)
    assert api.resume("a", tmp_path / "runs", debug=True).state == "SUCCEEDED"
    assert len(list(Ledger.read(run.ledger))) == STEPS


def test_what_is_tried_is_what_the_run_starts_from(tmp_path: Path, god_ray_here: Call) -> None:
    """`check` evaluates the first batch, here the whole set: as the first run ended, running means too."""
    recipe = RECIPE.replace("torch.nn.ReLU()", "torch.nn.BatchNorm1d(8)")
    spec = project(tmp_path, recipe)
    write_rows(tmp_path / "eval.parquet", SPEC["batch_size"], seed=1)
    run = trained(spec, tmp_path / "runs", "a")
    _, out, _ = god_ray_here("check", spec, "--json", "--set", f"init_from={run.path}")
    assert json.loads(out)["facts"]["metrics"] == list(Ledger.read(run.ledger))[-1]["eval"]


def test_a_run_of_the_version_before_kept_the_bare_path(small_run: RunFolder, god_ray_here: Call) -> None:
    record = small_run.read()
    del record["init_from"]
    record["spec"]["init_from"] = "/gone/w.safetensors"
    (small_run.path / "run.json").write_text(json.dumps(record))
    start = small_run.read().run_spec().init_from
    assert start is not None
    assert (start.path, start.partial) == ("/gone/w.safetensors", False)
    assert god_ray_here("eval", small_run.path)[0] == 0
    code, out, _ = god_ray_here("status", small_run.path, "--json")
    assert (code, json.loads(out)["init_from"]) == (0, None)
    shutil.rmtree(small_run.checkpoints / f"step-{STEPS:08d}")
    small_run.update(state="RUNNING", result=None)
    assert api.resume(str(small_run.path), debug=True).state == "SUCCEEDED"
