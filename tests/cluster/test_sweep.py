"""`god-ray sweep` through ray.tune on real Ray: draws, early stops, broken and diverging trials, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import small_project
from small_project import god_ray

from god_ray.errors import RunExists, UserError
from god_ray.sweep import search

KEYS = {"name", "state", "reason", "values", "value", "evaluations", "step", "digest", "folder"}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return small_project.write(tmp_path / "project")


def sweep(spec: Path, storage: Path, section: str, *changes: str) -> search.Swept:
    where = (f"storage={storage}", "name=s", f"sweep={section}", *changes)
    said: list[str] = []
    return search.run(str(spec), where, None, said.append)


@pytest.mark.cluster
def test_four_trials_draw_any_key_and_the_best_is_named(
    ray_cluster: None, spec: Path, tmp_path: Path
) -> None:
    section = """{metric: loss, trials: 4, concurrent: 2,
        search: {config.lr: {loguniform: [1e-3, 1e-1]}, batch_size: {choice: [8, 16, 32]}}}"""
    swept = sweep(spec, tmp_path, section)
    assert [row.state for row in swept.rows] == ["SUCCEEDED"] * 4
    assert sorted(row.name for row in swept.rows) == [f"trial-000{number}" for number in range(4)]
    assert len({row.values["config.lr"] for row in swept.rows}) == 4
    assert all(1e-3 <= row.values["config.lr"] <= 1e-1 for row in swept.rows)
    losses = [row.value for row in swept.rows]
    assert losses == sorted(losses)  # type: ignore[type-var]
    assert swept.best is swept.rows[0]

    found = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert found == swept.as_plain()
    assert found["best"] == str(swept.best.folder)
    assert all(set(trial) == KEYS for trial in found["trials"])

    values = [f"{key}={value}" for key, value in swept.best.values.items()]
    assert swept.best.digest == small_project.reference_digest(spec, tmp_path / "reference", *values)
    assert small_project.record(swept.best.folder)["spec"]["sweep"] is None


@pytest.mark.cluster
def test_laggards_are_given_up_and_bad_trials_harm_no_other(
    ray_cluster: None, spec: Path, tmp_path: Path
) -> None:
    """Drawn with this seed: 0.74, 0.75, 0.47, NaN (below 0.2), broken (above 0.8), 0.32. One after the other,
    so ASHA's decisions follow: the first two go on, the others lie below the median of those before."""
    section = """{metric: quality, mode: max, trials: 6, concurrent: 1, asha: {reduction: 2},
        search: {config.quality: {uniform: [0, 1]}}}"""
    swept = sweep(spec, tmp_path, section, "seed=47", "epochs=null", "steps=3000", "eval.every=50")
    by_name = {row.name[-1]: row for row in swept.rows}
    assert {name: row.state for name, row in by_name.items()} == {
        "0": "SUCCEEDED",
        "1": "SUCCEEDED",
        "2": "STOPPED",
        "3": "STOPPED",
        "4": "FAILED",
        "5": "STOPPED",
    }
    assert swept.best is by_name["1"]
    assert [row.name[-1] for row in swept.rows] == ["1", "0", "2", "5", "3", "4"]
    assert by_name["1"].step == 3000
    assert by_name["1"].evaluations == 60
    assert by_name["3"].as_plain()["value"] == "NaN"
    assert "too good to be true" in by_name["4"].reason
    for given_up in (by_name["2"], by_name["3"], by_name["5"]):
        assert 50 <= given_up.step < 3000
        assert given_up.reason.startswith("given up by its sweep after ")
        saved = sorted((given_up.folder / "checkpoints").glob("step-*"))
        assert saved[-1].name == f"step-{given_up.step:08d}"


@pytest.mark.cluster
def test_a_sweep_without_a_valid_result_says_so(ray_cluster: None, spec: Path, tmp_path: Path) -> None:
    section = "{metric: quality, trials: 2, concurrent: 2, search: {config.quality: {uniform: [0.0, 0.1]}}}"
    with pytest.raises(Exception, match="no valid result: quality is not a number in any of 2 trials"):
        sweep(spec, tmp_path, section)


@pytest.mark.cluster
def test_what_never_fits_is_refused_and_leaves_nothing(ray_cluster: None, spec: Path, tmp_path: Path) -> None:
    section = "{metric: loss, trials: 2, search: {config.lr: {uniform: [0.1, 0.2]}}}"
    with pytest.raises(UserError, match="8 CPU; the cluster has 4"):
        sweep(spec, tmp_path / "runs", section, "workers.cpus=8")
    assert not (tmp_path / "runs").exists()


@pytest.mark.cluster
def test_a_name_is_used_once(ray_cluster: None, spec: Path, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(RunExists, match="another --name"):
        sweep(spec, tmp_path, "{metric: loss, search: {config.lr: {uniform: [0.1, 0.2]}}}")


@pytest.mark.cluster
def test_ctrl_c_stops_every_trial_with_a_checkpoint(spec: Path, tmp_path: Path) -> None:
    """The command line, with a Ray of its own."""
    section = "{metric: loss, trials: 3, concurrent: 2, search: {config.lr: {uniform: [0.01, 0.1]}}}"
    words = ["sweep", spec, "--storage", tmp_path, "--name", "s", "--json"]
    words += ["--set", f"sweep={section}", "--set", "epochs=100000"]
    command = [sys.executable, "-m", "god_ray", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        runs = [tmp_path / "s" / f"trial-000{number}" for number in (0, 1)]
        wait_for(lambda: all(list(run.glob("ledger/*.jsonl")) for run in runs) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 103, err
    assert json.loads(out)["interrupted"] is True
    for run in runs:
        assert small_project.record(run)["state"] == "STOPPED"
        assert list(run.glob("checkpoints/step-*/manifest.json"))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_spec_without_a_sweep_is_refused_before_ray(spec: Path, tmp_path: Path) -> None:
    done = god_ray("sweep", spec, "--storage", tmp_path / "runs", cwd=tmp_path)
    assert done.returncode == 2
    assert "has no sweep section" in done.stderr
    section = "sweep={metric: loss, search: {config.lr: {uniform: [0.1, 0.2]}}}"
    done = god_ray("sweep", spec, "--set", section, "--set", "data.eval=null", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no data.eval" in done.stderr
