"""Runs that were killed where little was left to do, and what a driver must not forget or take along."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import saved
import torch
from small_runs import RECIPE, SPEC, STEPS, project, trained, write_rows

from god_ray import api
from god_ray.errors import RecipeError, ResumeRefused
from god_ray.loop.request import Request
from god_ray.monitor.ledger import Ledger
from god_ray.runtime import control, inline
from god_ray.runtime.run_folder import RunFolder
from god_ray.storage.local import LocalStore

CONSTANT = {"config": {"lr": 0.0}, "stop_when": {"metric": "accuracy", "mode": "max", "patience": 1}}


def killed_before_its_final_state(run: RunFolder) -> None:
    """As SIGKILL leaves it between the last checkpoint and the driver's last words."""
    run.update(state="RUNNING", reason="training", result=None)


@pytest.mark.parametrize(("changes", "step"), [(CONSTANT, 14), ({}, STEPS)])
def test_a_run_that_had_ended_ends_where_it_had(tmp_path: Path, changes: dict[str, Any], step: int) -> None:
    """By its early stop, or by its last step: not one step more, and the same result."""
    spec = project(tmp_path, **changes)
    first = api.train(spec, debug=True, name="a", storage=str(tmp_path / "runs"))
    assert (first.state, first.step) == ("SUCCEEDED", step)
    killed_before_its_final_state(RunFolder(first.folder))
    again = api.resume("a", tmp_path / "runs", debug=True)
    assert again == first
    assert again.metrics["num_rows"] == 13


def test_a_spec_that_was_edited_is_refused_with_the_difference(tmp_path: Path) -> None:
    run = trained(project(tmp_path), tmp_path / "runs", "a")
    killed_before_its_final_state(run)
    file = run.path / "spec.yaml"
    said = file.read_text()
    for change, told in (
        (("clip_norm: null", "clip_norm: 0.5"), "clip_norm: null became 0.5"),
        (("min_leaf_rows: 2", "min_leaf_rows: 1"), "data.min_leaf_rows: 2 became 1"),
    ):
        assert change[0] in said
        file.write_text(said.replace(*change))
        with pytest.raises(ResumeRefused, match=told):
            api.resume("a", tmp_path / "runs", debug=True)
    file.write_text(said.replace("keep: 3", "keep: 2"))
    assert api.resume("a", tmp_path / "runs", debug=True).state == "SUCCEEDED"


@pytest.mark.parametrize(
    ("name", "rows", "seed", "what", "fix"),
    [
        (
            "train",
            51,
            0,
            r"data\.train of run a has changed\. 50 rows became 51\.",
            "start a new run on the grown data",
        ),
        ("train", 50, 1, r"data\.train of run a has changed\.$", "put the files back"),
        ("eval", 14, 0, r"data\.eval of run a has changed\.$", "put the files back"),
    ],
)
def test_other_data_is_refused_and_it_says_how_to_go_on(
    tmp_path: Path, name: str, rows: int, seed: int, what: str, fix: str
) -> None:
    killed_before_its_final_state(trained(project(tmp_path), tmp_path / "runs", "a"))
    write_rows(tmp_path / f"{name}.parquet", rows, seed)
    with pytest.raises(ResumeRefused) as caught:
        api.resume("a", tmp_path / "runs", debug=True)
    assert re.match(what, caught.value.what)
    assert fix in caught.value.fix


def test_a_run_to_start_from_means_its_newest_checkpoint_of_today(tmp_path: Path) -> None:
    spec = project(tmp_path)
    first = trained(spec, tmp_path / "runs", "a")
    second = trained(spec, tmp_path / "runs", "b", init_from=str(first.path))
    assert second.read()["spec"]["init_from"]["path"] == str(first.checkpoints / f"step-{STEPS:08d}")


def test_only_the_command_that_was_applied_is_forgotten(tmp_path: Path) -> None:
    commands = LocalStore(tmp_path)
    control.send(commands, Request("stop"))
    control.clear(commands, Request("resize", 3))
    assert control.listen(commands).poll() == Request("stop")
    control.clear(commands, Request("stop"))
    control.clear(commands, Request("stop"))
    assert control.listen(commands).poll() is None


def test_a_damaged_checkpoint_is_named_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(project(tmp_path), tmp_path / "runs", "a")
    killed_before_its_final_state(run)
    saved.files(run.checkpoints, 21, "model")[0].write_bytes(b"")
    said, move = [], RunFolder.move

    def moved(folder: RunFolder, state: str, reason: str) -> None:
        said.append(reason)
        move(folder, state, reason)

    monkeypatch.setattr(RunFolder, "move", moved)
    assert api.resume("a", tmp_path / "runs", debug=True).state == "SUCCEEDED"
    assert "training in one process from step 20; steps 21 to 21 are done again and compared" in said[1]
    assert "; passed over step-00000021: model-1of1.1.safetensors" in said[1]


def test_evaluation_leaves_the_buffers_alone(tmp_path: Path) -> None:
    """A module that counts its calls, in evaluation too."""
    counting = RECIPE.replace(
        "def loss(",
        "class Counts(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('calls', torch.zeros(()))\n\n"
        "    def forward(self, x):\n"
        "        self.calls += 1\n"
        "        return x\n\n\n"
        "def loss(",
    ).replace("torch.nn.ReLU()", "Counts()")
    calls = []
    for every in (1, 100):
        spec = project(tmp_path / str(every), counting, eval={"every": every})
        run = trained(spec, tmp_path / "runs", f"every-{every}")
        calls.append(saved.tensors(run.checkpoints, 21)["1.calls"])
    assert calls[0] == calls[1] == STEPS


def test_a_run_that_cannot_begin_lets_go_of_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RecipeError("no")

    monkeypatch.setattr(inline, "assemble", fails)
    result = api.train(project(tmp_path), debug=True, name="a", storage=str(tmp_path / "runs"))
    assert result.state == "FAILED"
    Ledger.open_writer(result.folder / "ledger", patience_s=0).close()


def test_a_run_in_this_process_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither threads, which hold windows of data, nor settings of torch."""
    had = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = set(threading.enumerate())
        data = {**SPEC["data"], "shuffle": "window", "window": 1}
        trained(project(tmp_path, data=data), tmp_path / "runs", "a")
        assert set(threading.enumerate()) <= before
        assert torch.get_num_threads() == 2
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(had)
