"""`god-ray eval`: the ledger's numbers to the last digit, other data, a run's folder that stays as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import saved
import torch
from small_runs import RECIPE, STEPS, project, trained, write_rows

import god_ray
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import UserError
from god_ray.monitor.ledger import Ledger
from god_ray.runtime.run_folder import RunFolder
from god_ray.storage.local import LocalStore

Call = Callable[..., tuple[int, str, str]]
HARD = RECIPE.replace(
    "torch.nn.ReLU(),", "torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.3),"
).replace('return {"accuracy"', 'return {"noise": torch.rand(len(batch["y"])), "accuracy"')
HALVED = """\
import pyarrow as pa


def halve(table):
    halves = pa.FixedSizeListArray.from_arrays(table["x"].combine_chunks().values.to_numpy() / 2, 4)
    return table.set_column(table.schema.get_field_index("x"), "x", halves.cast(table.schema.field("x").type))
"""


def ledger_evals(run: RunFolder) -> dict[int, dict[str, Any]]:
    return {line["step"]: line["eval"] for line in Ledger.read(run.ledger) if "eval" in line}


def told(god_ray_here: Call, *arguments: object) -> dict[str, Any]:
    code, out, _ = god_ray_here("eval", *arguments, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize(
    "changes",
    [{}, {"lanes": 3}, {"precision": "bf16-mixed"}, {"workers": {"max": 2, "cpus": 2}}],
    ids=lambda changes: next(iter(changes), "as it is"),
)
def test_the_numbers_are_the_ledgers_at_every_checkpoint(
    tmp_path: Path, god_ray_here: Call, changes: dict[str, Any]
) -> None:
    """With BatchNorm, dropout, a metric that draws numbers, and a preprocess."""
    (tmp_path / "halve.py").write_text(HALVED)
    data = {"train": "train.parquet", "eval": "eval.parquet", "preprocess": "halve.py:halve"}
    spec = project(tmp_path, HARD, data=data, checkpoint={"every_steps": 7, "keep": 9})
    run = trained(spec, tmp_path / "runs", "a", **changes)
    evals = ledger_evals(run)
    assert list(evals) == [7, 14, 21]
    for step, metrics in evals.items():
        found = told(god_ray_here, run.path, "--step", step)
        assert (found["step"], found["metrics"], found["notes"]) == (step, metrics, [])
        assert found["digest"] == CheckpointStore(LocalStore(run.checkpoints), 0).load(step)[0].digest()


def test_a_process_of_its_own_says_the_same_without_ray(finished_run: RunFolder, tmp_path: Path) -> None:
    code = "import sys; from god_ray.cli import main; sys.exit(main() or 'ray' in sys.modules)"
    arguments = [sys.executable, "-c", code, "eval", finished_run.path, "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"] == ledger_evals(finished_run)[STEPS]


def test_metrics_on_stdout_the_rest_on_stderr(god_ray_here: Call, finished_run: RunFolder) -> None:
    metrics = ledger_evals(finished_run)[STEPS]
    code, out, err = god_ray_here("eval", "done", "--storage", finished_run.path.parent)
    assert code == 0
    lines = dict(line.split() for line in out.splitlines())
    assert lines == {"accuracy": f"{metrics['accuracy']:.4g}", "loss": f"{metrics['loss']:.4g}"}
    eval_file = finished_run.read()["spec"]["data"]["eval"][0]
    assert err.splitlines()[-1] == f"done, step {STEPS}, on 13 rows of {eval_file}"
    assert set(told(god_ray_here, finished_run.path)) == {
        *("name", "step", "digest", "data", "metrics", "notes"),
    }


def test_the_runs_folder_stays_as_it_is(god_ray_here: Call, small_run: RunFolder) -> None:
    def tree() -> dict[str, tuple[int, bytes]]:
        files = [path for path in small_run.path.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before, folders = tree(), {p: p.stat().st_mtime_ns for p in small_run.path.rglob("*") if p.is_dir()}
    told(god_ray_here, small_run.path)
    assert tree() == before
    assert {path: path.stat().st_mtime_ns for path in folders} == folders


def test_other_data(god_ray_here: Call, finished_run: RunFolder, tmp_path: Path) -> None:
    """Two files one by one, as a folder and as a glob; columns beside those of the run do not matter."""
    files = [tmp_path / "new" / f"{name}.parquet" for name in "ab"]
    files[0].parent.mkdir()
    for index, file in enumerate(files):
        write_rows(file, 20 + index, seed=5 + index)
        table = pq.read_table(file)
        pq.write_table(table.append_column("id", pa.array(["text"] * len(table))), file)
    table = pa.concat_tables([pq.read_table(file) for file in files])
    x = torch.from_numpy(np.array(table["x"].to_pylist(), np.float32))
    weights = CheckpointStore(LocalStore(finished_run.checkpoints), 0).load(STEPS)[0].model
    hidden = torch.relu(x @ weights["0.weight"].T + weights["0.bias"])
    guess = (hidden @ weights["2.weight"].T + weights["2.bias"]).argmax(dim=1)
    right = (guess == torch.tensor(table["y"].to_pylist())).sum().item()
    each = told(god_ray_here, finished_run.path, "--data", files[0], "--data", files[1])
    assert each["metrics"]["num_rows"] == 41
    assert each["metrics"]["accuracy"] == right / 41
    assert each["data"] == [str(file) for file in files]
    for data in (files[0].parent, files[0].parent / "*.parquet"):
        assert told(god_ray_here, finished_run.path, "--data", data)["metrics"] == each["metrics"]
    from_python = god_ray.evaluate("done", files[0].parent, storage=finished_run.path.parent)
    assert from_python == each["metrics"]


def test_the_callers_process_is_left_as_it_was(finished_run: RunFolder) -> None:
    torch.manual_seed(5)
    threads, before = torch.get_num_threads(), torch.get_rng_state()
    metrics = god_ray.evaluate(str(finished_run.path))
    assert metrics == ledger_evals(finished_run)[STEPS]
    assert torch.equal(before, torch.get_rng_state())
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (threads, False)


def test_the_best_checkpoint_is_that_of_export(
    god_ray_here: Call, finished_run: RunFolder, tmp_path: Path
) -> None:
    _, out, _ = god_ray_here("export", finished_run.path, "--to", tmp_path / "m", "--best", "--json")
    exported, found = json.loads(out), told(god_ray_here, finished_run.path, "--best")
    assert (found["step"], found["digest"]) == (exported["step"], exported["digest"])
    assert found["metrics"] == exported["metrics"]


# ---- what may make numbers differ


def test_what_was_passed_over_is_named(god_ray_here: Call, small_run: RunFolder) -> None:
    saved.files(small_run.checkpoints, STEPS, "model")[0].write_bytes(b"")
    code, _, err = god_ray_here("eval", small_run.path)
    assert code == 0
    assert f"passed over step-{STEPS:08d}: model-1of1.1.safetensors has 0 bytes" in err
    assert "step 20, on 13 rows" in err
    with pytest.warns(UserWarning, match="passed over step-00000021"):
        god_ray.evaluate(str(small_run.path))


def test_another_machine_is_named(god_ray_here: Call, small_run: RunFolder) -> None:
    small_run.update(fingerprint=small_run.read()["fingerprint"] | {"isa": "Z80"})
    code, _, err = god_ray_here("eval", small_run.path)
    assert code == 0
    assert "the last digits may differ from the run's own: isa: the run has Z80, this process has" in err


def test_an_evaluation_set_that_has_changed_is_named(tmp_path: Path, god_ray_here: Call) -> None:
    run = trained(project(tmp_path), tmp_path / "runs", "a")
    write_rows(tmp_path / "eval.parquet", 14, seed=1)
    code, _, err = god_ray_here("eval", run.path)
    assert code == 0
    assert "data.eval has changed since the run began" in err


def test_how_far_it_is(finished_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from god_ray.runtime.evaluation import evaluate

    monkeypatch.setattr("god_ray.saying.EVERY_S", 0.0)
    said: list[str] = []
    evaluate(finished_run, say=said.append)
    assert said[:3] == [f"evaluating: {done} of 13 rows" for done in (0, 2, 4)]


# ---- refusals, in three parts


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (["--step", "3"], 102, ["has no checkpoint of step 3", "There are those of steps", "--step"]),
        (["--step", "3", "--best"], 2, ["both given", "Each names a checkpoint", "keep one of them"]),
        (["--data", "nowhere"], 2, ["nowhere: no data there", "It is no file", "Fix: "]),
    ],
)
def test_what_cannot_be_evaluated(
    god_ray_here: Call, finished_run: RunFolder, arguments: list[str], code: int, texts: list[str]
) -> None:
    found, out, err = god_ray_here("eval", finished_run.path, *arguments)
    assert (found, out) == (code, "")
    assert [text for text in texts if text not in err] == []


def test_before_the_first_checkpoint(god_ray_here: Call, small_run: RunFolder) -> None:
    for path in small_run.checkpoints.iterdir():
        path.rename(path.with_name(f"{path.name}.1.tmp"))
    code, _, err = god_ray_here("eval", small_run.path)
    assert code == 102
    assert "run done has no checkpoint yet." in err
    assert "Fix: wait for the first one" in err


def test_a_run_without_an_evaluation_set(tmp_path: Path, god_ray_here: Call) -> None:
    spec = project(tmp_path, data={"train": "train.parquet"}, checkpoint={})
    run = trained(spec, tmp_path / "runs", "a")
    code, _, err = god_ray_here("eval", run.path)
    assert code == 2
    assert err == (
        "run a has no evaluation set.\n  Its spec has no data.eval.\n"
        "  Fix: name files, folders or globs with --data.\n"
    )
    assert told(god_ray_here, run.path, "--data", tmp_path / "eval.parquet")["metrics"]["num_rows"] == 13


def test_other_data_that_does_not_fit(god_ray_here: Call, finished_run: RunFolder, tmp_path: Path) -> None:
    write_rows(tmp_path / "eval.parquet", 9)
    table = pq.read_table(tmp_path / "eval.parquet")
    narrow = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(18, np.float32)), 2)
    for name, other, texts in (
        ("renamed", table.rename_columns(["x", "yy"]), ["column y", "no such column", "did you mean yy?"]),
        ("empty", table.slice(0, 0), ["no rows", "Fix: "]),
        ("narrow", table.set_column(0, "x", narrow), ["recipe.py", "metrics(model, batch)"]),
    ):
        pq.write_table(other, tmp_path / f"{name}.parquet")
        code, out, err = god_ray_here("eval", finished_run.path, "--data", tmp_path / f"{name}.parquet")
        assert (code, out) == (2, ""), err
        assert [text for text in texts if text not in err] == []


def test_a_recipe_that_builds_another_model_now(tmp_path: Path, god_ray_here: Call) -> None:
    run = trained(project(tmp_path), tmp_path / "runs", "a")
    (tmp_path / "recipe.py").write_text(RECIPE.replace("Linear(8, 3)", "Linear(8, 5)"))
    code, _, err = god_ray_here("eval", run.path)
    assert code == 100
    assert "the checkpoint does not fit the recipe: parameters changed" in err
    with pytest.raises(UserError, match="both given"):
        god_ray.evaluate(str(run.path), step=1, best=True)
