"""Which checkpoint `--best` means: the earlier of equals, never NaN, and a word where none was measured."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import STEPS

from god_ray.checkpoint.store import CheckpointStore
from god_ray.runtime.run_folder import RunFolder
from god_ray.storage.local import LocalStore

Call = Callable[..., tuple[int, str, str]]


def measured(run: RunFolder, *accuracies: float | None) -> RunFolder:
    """The run with checkpoints of steps 1, 2, ... that were evaluated so; None: not evaluated."""
    store = CheckpointStore(LocalStore(run.checkpoints), 1, run=run.read()["id"])
    snapshot, meta = store.load(STEPS)
    shutil.rmtree(run.checkpoints)
    for step, accuracy in enumerate(accuracies, start=1):
        evaluated = None if accuracy is None else {"accuracy": accuracy}
        store.write(step, snapshot, meta | {"eval": evaluated})
    return run


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ((0.5, 0.9, 0.9, 0.1), 2),
        ((math.nan, 0.2, math.nan), 2),
        ((None, 0.2, 0.3, None), 3),
        ((0.1, math.inf), 2),
        ((0.0, -0.0), 1),
    ],
    ids=["ties", "NaN", "not evaluated", "infinity", "zeros"],
)
@pytest.mark.parametrize("command", ["export", "eval"])
def test_the_best_of(
    god_ray_here: Call,
    small_run: RunFolder,
    tmp_path: Path,
    command: str,
    accuracies: tuple[float | None, ...],
    best: int,
) -> None:
    run = measured(small_run, *accuracies)
    to = ["--to", tmp_path / "m"] if command == "export" else []
    code, out, err = god_ray_here(command, run.path, "--best", "--json", *to)
    assert code == 0, err
    assert json.loads(out)["step"] == best


@pytest.mark.parametrize("accuracies", [(math.nan, math.nan), (None, None)], ids=["NaN", "not evaluated"])
@pytest.mark.parametrize("command", ["export", "eval"])
def test_no_best(
    god_ray_here: Call,
    small_run: RunFolder,
    tmp_path: Path,
    command: str,
    accuracies: tuple[float | None, ...],
) -> None:
    run = measured(small_run, *accuracies)
    to = ["--to", tmp_path / "m"] if command == "export" else []
    code, out, err = god_ray_here(command, run.path, "--best", *to)
    assert (code, out) == (102, "")
    assert err == (
        "no checkpoint has a value of accuracy.\n"
        "  Only those of steps that were evaluated have one, and NaN is none.\n"
        "  Fix: leave --best out for the newest checkpoint.\n"
    )


@pytest.mark.parametrize("command", ["export", "eval"])
def test_a_spec_without_a_rule(
    god_ray_here: Call, small_run: RunFolder, tmp_path: Path, command: str
) -> None:
    spec = small_run.read()["spec"]
    small_run.update(spec=spec | {"checkpoint": spec["checkpoint"] | {"keep_best": None}})
    to = ["--to", tmp_path / "m"] if command == "export" else []
    code, _, err = god_ray_here(command, small_run.path, "--best", *to)
    assert code == 2
    assert "the run's spec does not say which checkpoint is best." in err
    assert "use --step N" in err
