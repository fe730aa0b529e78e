"""Warm start and evaluation of a run whose workers are Ray's: the bits and the numbers of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.crew import DEBUG, TESTS, Crew, happened
from small_project import god_ray
from torch import nn

from god_ray import api
from god_ray.api import Result
from god_ray.runtime.run_folder import RunFolder

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture
def spec_of(crew: Crew, rows_of: Callable[..., str], tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """A partial start from a file of another program: the last layer has another size there."""
    state = {
        **{f"module.{name}": value for name, value in nn.Linear(12, 24).state_dict(prefix="0.").items()},
        **{f"module.{name}": value for name, value in nn.Linear(24, 9).state_dict(prefix="2.").items()},
    }
    torch.save({"model": state, "epoch": 7}, tmp_path / "w.pt")

    def spec(name: str) -> dict[str, Any]:
        return {
            "recipe": str(TESTS / "recipes" / "zoo.py"),
            "config": {"model": "mlp"},
            "data": {"train": rows_of(70, 2, 10), "eval": rows_of(21, seed=1)},
            "init_from": {"path": str(tmp_path / "w.pt"), "partial": True},
            "batch_size": 16,
            "epochs": 2,
            "seed": 5,
            "workers": 2,
            "name": name,
            "storage": str(tmp_path / "runs"),
            "determinism": {"isa": crew.isa, "digest_every": 1},
            "checkpoint": {"every_s": None, "every_steps": 5, "keep": 9},
        }

    return spec


def test_two_workers_start_from_the_weights_of_one_process(
    crew: Crew, spec_of: Callable[[str], dict[str, Any]]
) -> None:
    alone, _ = crew.train(spec_of("alone"), DEBUG)
    both: Result = api.train(spec_of("both"))
    assert (alone.state, both.state) == ("SUCCEEDED", "SUCCEEDED"), both.failure
    assert happened(both) == happened(alone)
    told = [RunFolder(result.folder).read()["init_from"] for result in (alone, both)]
    assert told[0] == told[1]
    assert (told[0]["num_taken"], told[0]["num_tensors"], told[0]["stripped"]) == (2, 4, "module.")
    evals = {line["step"]: line["eval"] for line in happened(both) if "eval" in line}
    assert list(evals) == [5, 10]
    for step, metrics in evals.items():  # in a process of its own, set up like a worker's
        done = god_ray("eval", both.folder, "--step", step, "--json", cwd=both.folder.parent)
        found = json.loads(done.stdout)
        assert (found["metrics"], found["notes"]) == (metrics, [])
