"""Room for checkpoints, estimated before a run is started (case 4.10)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from small_runs import RECIPE, project

from god_ray import api
from god_ray.checkpoint.state import TrainState, capture
from god_ray.runtime.check import check
from god_ray.runtime.room import expected_bytes, room
from god_ray.spec import load

LARGE = RECIPE.replace("Linear(4, 8)", "Linear(4, 20000)").replace("Linear(8, 3)", "Linear(20000, 3)")
NUM_BYTES = 4 * (5 * 20000 + 3 * 20001) * 3
"""Parameters, and AdamW's two numbers for each; its step counts apart."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_check_and_train_warn_of_too_little_room_and_go_on(
    god_ray_here: Callable[..., tuple[int, str, str]], small_disk: Path, tmp_path: Path
) -> None:
    spec = project(tmp_path / "p", LARGE, storage=str(small_disk / "runs"), steps=1, epochs=None)
    checked = check(spec)
    assert checked.faults == []
    found = checked.facts["checkpoint_bytes"]
    assert NUM_BYTES <= found["each"] <= NUM_BYTES + 100
    assert found["needed"] == 5 * found["each"], "keep: 3, the best one, and the one that is being written"
    assert found["free"] == 8 << 20
    said = f"storage = {small_disk}/runs has 8,388,608 bytes free, and checkpoints will need about "
    assert [text for text in checked.warnings if text.startswith(said)]
    told: list[str] = []
    result = api.train(spec, debug=True, name="demo", say=told.append)
    assert result.state == "SUCCEEDED", result.failure
    assert f"{said}{5 * NUM_BYTES:,}: 5 of {NUM_BYTES:,}; make room, or lower checkpoint.keep" in told
    code, out, err = god_ray_here("check", spec, "--set", "checkpoint.keep=1", "--set", "steps=2")
    assert code == 0
    assert "checkpoints" in out
    assert "bytes free" not in err, "three fit"


def test_enough_room_and_a_bucket_are_no_warning(tmp_path: Path) -> None:
    spec = load(project(tmp_path / "p"))
    assert room(spec.spec, 1000).warning == ""
    remote = spec.spec.model_copy(update={"storage": "s3://bucket/runs"})
    assert (room(remote, 1 << 60).free, room(remote, 1 << 60).warning) == (None, "")


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    ],
)
def test_what_is_expected_is_what_a_checkpoint_then_has(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 10))
    model[2].weight.requires_grad_(False)
    state = TrainState(model, make(model.parameters()))
    expected = expected_bytes(state)
    model(torch.ones(2, 30)).sum().backward()
    state.optimizer.step()
    assert expected <= capture(state).num_bytes <= expected + 8 * len(list(model.parameters()))
