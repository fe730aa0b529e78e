"""The commands around a run: what goes to stdout, what to stderr, which exit code; that they fit together."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import saved
from small_runs import RECIPE, STEPS, project, rewrite

from god_ray.cli import options, outcome
from god_ray.monitor.ledger import Ledger
from god_ray.runtime.follow import watch
from god_ray.runtime.run_folder import RunFolder

RESULT_KEYS = {"name", "state", "reason", "step", "metrics", "digest", "folder", "checkpoint", "failure"}


# ---- train


def test_train_prints_the_name_alone_and_the_rest_on_stderr(god_ray_here, small_spec: Path) -> None:
    code, out, err = god_ray_here("train", small_spec, "--debug", "--name", "one")
    assert (code, out) == (0, "one\n")
    record = RunFolder(Path("runs/one")).read()
    last = list(Ledger.read(Path("runs/one/ledger")))[-1]
    for text in (
        f"step {STEPS}/{STEPS}",
        "run one SUCCEEDED: all steps done",
        f"test accuracy {last['eval']['accuracy']:.4g}",
        f"digest  {record['result']['digest']} after step {STEPS}",
        f"checkpoints/step-{STEPS:08d}",
        "god-ray verify one",
        "god-ray export one --to model.safetensors",
        "god-ray status one",
    ):
        assert text in err, err
    assert "\r" not in err
    assert "\x1b" not in err


def test_train_as_json_has_stable_keys(god_ray_here, small_spec: Path, tmp_path: Path) -> None:
    code, out, _ = god_ray_here(
        "train", small_spec, "--debug", "--json", "--storage", tmp_path, "--name", "two"
    )
    told = json.loads(out)
    assert code == 0
    assert set(told) == RESULT_KEYS
    assert (told["name"], told["state"], told["step"]) == ("two", "SUCCEEDED", STEPS)
    assert Path(told["folder"]) == tmp_path / "two"
    assert Path(told["checkpoint"]).is_dir()


def test_train_takes_changes(god_ray_here, small_spec: Path) -> None:
    changes = ("--set", "epochs=1", "--set", "config.lr=0.5", "--name", "12", "--workers", "1:3")
    code, out, _ = god_ray_here("train", small_spec, "--debug", *changes)
    assert (code, out) == (0, "12\n")
    spec = RunFolder(Path("runs/12")).read()["spec"]
    assert (spec["epochs"], spec["config"]["lr"]) == (1, 0.5)
    assert (spec["workers"]["min"], spec["workers"]["max"]) == (1, 3)


def test_what_a_recipe_prints_does_not_reach_stdout(god_ray_here, tmp_path: Path) -> None:
    spec = project(tmp_path, recipe=RECIPE.replace("def loss", 'print("hello")\n\n\ndef loss'))
    code, out, err = god_ray_here("train", spec, "--debug", "--name", "one")
    assert (code, out) == (0, "one\n")
    assert "hello" in err
    code, out, _ = god_ray_here("check", spec, "--json")
    assert json.loads(out)["ok"]


def test_a_name_is_taken_once(god_ray_here, small_spec: Path, small_run: RunFolder) -> None:
    storage = small_run.path.parent
    before = (small_run.path / "run.json").read_text()
    code, out, err = god_ray_here("train", small_spec, "--debug", "--name", "done", "--storage", storage)
    assert (code, out) == (2, "")
    assert "run 'done' exists already" in err
    assert "god-ray resume done" in err
    assert (small_run.path / "run.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "batch_sise=4"], "did you mean batch_size?"),
        (["--workers", "9"], "workers.max = 9: is above lanes = 4"),
        (["--workers", "many"], "workers"),
        (["--name", "a/b"], "name"),
    ],
)
def test_a_fault_starts_nothing(arguments, text, god_ray_here, small_spec: Path) -> None:
    code, out, err = god_ray_here("train", small_spec, "--debug", *arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert not Path("runs").exists()


def test_a_run_that_fails_says_why(god_ray_here, tmp_path: Path) -> None:
    bad = "return functional.cross_entropy"
    late = "loss.calls = getattr(loss, 'calls', 0) + 1\n    if loss.calls > 8: raise ValueError('too big')"
    recipe = RECIPE.replace(bad, f"{late}\n    {bad}")
    code, out, err = god_ray_here("train", project(tmp_path, recipe=recipe), "--debug", "--name", "bad")
    assert (code, out) == (100, "bad\n")
    assert "run bad FAILED" in err
    assert "too big" in err
    assert "god-ray resume bad" in err
    assert god_ray_here("status", "bad")[0] == 100
    code, out, _ = god_ray_here("resume", "bad", "--debug", "--json")
    told = json.loads(out)
    assert (code, told["state"]) == (100, "FAILED")
    assert set(told["failure"]) == {"what", "why", "fix"}


# ---- looking


def test_a_run_is_found_by_name_under_a_storage_or_by_path(
    god_ray_here, finished_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = finished_run.path.parent
    code, out, err = god_ray_here("status", "done")
    assert (code, out) == (102, "")
    assert "no run 'done' in runs" in err
    assert god_ray_here("status", "done", "--storage", storage)[0] == 0
    assert god_ray_here("status", finished_run.path)[0] == 0
    monkeypatch.setenv(options.STORAGE_VARIABLE, str(storage))
    assert god_ray_here("status", "done")[0] == 0
    code, _, err = god_ray_here("status", "dona")
    assert code == 102
    assert "There are: done" in err


@pytest.mark.parametrize("command", ["status", "ledger", "verify", "resume"])
def test_a_run_that_is_not_there(command: str, god_ray_here) -> None:
    code, out, err = god_ray_here(command, "nothing")
    assert (code, out) == (102, "")
    assert "Fix: " in err


def test_the_environment_names_a_storage_that_a_spec_overrules(
    god_ray_here, small_spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(options.STORAGE_VARIABLE, str(tmp_path / "env"))
    short = ("--debug", "--set", "epochs=1", "--name", "a")
    assert god_ray_here("train", small_spec, *short)[0] == 0
    assert god_ray_here("train", small_spec, *short, "--set", f"storage={tmp_path / 'spec'}")[0] == 0
    assert god_ray_here("train", small_spec, *short, "--storage", tmp_path / "option")[0] == 0
    assert {path.parent.parent.name for path in tmp_path.glob("*/a/run.json")} == {"env", "spec", "option"}


@pytest.mark.parametrize(
    ("state", "code"), [("SUCCEEDED", 0), ("FAILED", 100), ("STOPPED", 103), ("RUNNING", 101)]
)
def test_the_exit_code_is_that_of_the_state(state, code, god_ray_here, small_run: RunFolder) -> None:
    small_run.update(state=state, reason="because")
    assert god_ray_here("status", small_run.path)[0] == code
    assert outcome.code_of(state) == code


def test_ls_says_that_a_driver_is_gone(god_ray_here, small_run: RunFolder) -> None:
    small_run.update(state="RUNNING", reason="training")
    line = god_ray_here("ls", "--storage", small_run.path.parent)[1].splitlines()[1]
    assert line.split()[1] == "RUNNING"
    assert "  its driver is gone; god-ray resume done" in line
    assert "RUNNING: its driver is gone" in god_ray_here("status", small_run.path)[1]


def test_one_is_told_in_the_singular(god_ray_here, small_run: RunFolder, small_spec: Path) -> None:
    small_run.update(recoveries=1)
    assert "1 recovery\n" in god_ray_here("status", small_run.path)[1]
    small_run.update(recoveries=2)
    assert "2 recoveries\n" in god_ray_here("status", small_run.path)[1]
    assert "50 in 1 file, 4 fragments, " in god_ray_here("check", small_spec)[1]
    small_run.update(result=small_run.read()["result"] | {"digest": "0"})
    assert god_ray_here("verify", small_run.path)[2] == "done: NOT verified, 1 difference\n"


def test_ls_lists_names_first(god_ray_here, small_run: RunFolder) -> None:
    code, out, _ = god_ray_here("ls", "--storage", small_run.path.parent)
    head, line = out.splitlines()
    assert code == 0
    assert head.split()[:2] == ["NAME", "STATE"]
    assert line.split()[:3] == ["done", "SUCCEEDED", f"{STEPS}/{STEPS}"]
    code, out, _ = god_ray_here("ls", "--json", "--storage", small_run.path.parent)
    assert [run["name"] for run in json.loads(out)] == ["done"]
    code, out, err = god_ray_here("ls")
    assert (code, out, err) == (0, "", "no runs in runs\n")
    assert god_ray_here("ls", "--json")[1] == "[]\n"


def test_the_ledger_is_one_line_per_step(god_ray_here, small_run: RunFolder) -> None:
    rewrite(small_run, 9, loss="NaN")
    code, out, _ = god_ray_here("ledger", small_run.path)
    head, *lines = out.splitlines()
    assert code == 0
    assert head.split()[:3] == ["STEP", "EPOCH", "ROWS"]
    assert [int(line.split()[0]) for line in lines] == list(range(1, STEPS + 1))
    assert lines[8].split()[4] == "nan"
    records = [
        json.loads(line, parse_constant=pytest.fail)
        for line in god_ray_here("ledger", small_run.path, "--json")[1].splitlines()
    ]
    assert records == list(Ledger.read(small_run.ledger))
    _, out, _ = god_ray_here("ledger", small_run.path, "--from", STEPS)
    assert len(out.splitlines()) == 2
    (small_run.ledger / "00000006-00000008.jsonl").unlink()
    code, out, err = god_ray_here("ledger", small_run.path, "--json")
    assert code == 100
    assert len(out.splitlines()) == 5
    assert "lacks step 6" in err


def test_verify_prints_what_held_and_what_differs(god_ray_here, small_run: RunFolder) -> None:
    code, out, err = god_ray_here("verify", small_run.path)
    assert code == 0
    assert len(re.findall(r"^ok ", out, re.MULTILINE)) == 4
    assert err == "done: verified\n"
    rewrite(small_run, 9, row_checksum="1")
    code, out, err = god_ray_here("verify", small_run.path)
    assert code == 100
    assert "DIFFERS  rows: step 9 has row_checksum 1" in out
    assert "NOT verified, 2 differences" in err
    code, out, _ = god_ray_here("verify", small_run.path, "--against", small_run.path, "--json")
    told = json.loads(out)
    assert code == 100
    assert set(told) == {"name", "against", "ok", "held", "skipped", "differences", "num_differences"}
    assert {"check", "step", "text"} == set(told["differences"][0])


def test_check_separates_facts_from_faults(god_ray_here, small_spec: Path) -> None:
    code, out, err = god_ray_here("check", small_spec)
    assert code == 0
    assert "7 an epoch, 21 in all" in out
    assert err.endswith(f"can be trained: god-ray train {small_spec}\n")
    code, out, err = god_ray_here("check", small_spec, "--set", "batch_size=64", "--json")
    told = json.loads(out)
    assert code == 2
    assert set(told) == {"ok", "faults", "warnings", "facts"}
    assert set(told["faults"][0]) == {"kind", "where", "key", "what", "why", "fix"}
    assert "1 fault; nothing was started" in err


# ---- export


def test_an_export_loads_into_the_plain_model(god_ray_here, finished_run: RunFolder, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from god_ray.api import Result

    target = tmp_path / "model.safetensors"
    code, out, err = god_ray_here("export", finished_run.path, "--to", target)
    assert (code, out) == (0, f"{target}\n")
    assert f"step {STEPS}" in err
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model = Result("done", "SUCCEEDED", "", STEPS, {}, "", finished_run.path, finished_run.place).load_model()
    assert torch.equal(before, torch.get_rng_state()), "the caller's generators are left alone"
    assert not model.training
    weights = load_file(target)
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    model.load_state_dict(weights)


def test_the_best_checkpoint_is_the_one_that_evaluated_best(
    god_ray_here, finished_run: RunFolder, tmp_path: Path
) -> None:
    code, out, _ = god_ray_here("export", finished_run.path, "--to", tmp_path / "m", "--best", "--json")
    told = json.loads(out)
    best = max(
        (record for record in Ledger.read(finished_run.ledger) if "eval" in record),
        key=lambda record: (record["eval"]["accuracy"], -record["step"]),
    )
    assert code == 0
    assert set(told) == {"name", "path", "num_bytes", "step", "digest", "metrics"}
    assert (told["step"], told["digest"]) == (best["step"], best["digest"])
    assert told["num_bytes"] == os.path.getsize(tmp_path / "m")


def test_a_damaged_newest_checkpoint_is_passed_over_by_name(
    god_ray_here, small_run: RunFolder, tmp_path: Path
) -> None:
    saved.files(small_run.checkpoints, STEPS, "model")[0].write_bytes(b"")
    code, _, err = god_ray_here("export", small_run.path, "--to", tmp_path / "m")
    assert code == 0
    assert f"passed over step-{STEPS:08d}: model-1of1.1.safetensors has 0 bytes" in err
    code, _, err = god_ray_here("export", small_run.path, "--to", tmp_path / "n", "--step", STEPS)
    assert code == 100
    assert not (tmp_path / "n").exists()
    for path in small_run.checkpoints.glob("step-*/model*"):
        path.write_bytes(b"")
    code, _, err = god_ray_here("export", small_run.path, "--to", tmp_path / "n")
    assert code == 100
    assert "no intact checkpoint is left" in err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--step", "3"], 102, "has no checkpoint of step 3"),
        (["--step", "3", "--best"], 2, "both given"),
        (["--to", "."], 2, "is a folder"),
    ],
)
def test_an_export_that_cannot_be(
    arguments, code, text, god_ray_here, finished_run: RunFolder, tmp_path: Path
) -> None:
    to = [] if "--to" in arguments else ["--to", tmp_path / "m"]
    found, out, err = god_ray_here("export", finished_run.path, *to, *arguments)
    assert (found, out) == (code, "")
    assert text in err


def test_an_export_touches_no_file_and_makes_no_folder(
    god_ray_here, finished_run: RunFolder, tmp_path: Path
) -> None:
    taken, nowhere = tmp_path / "m", tmp_path / "nowhere"
    taken.write_text("mine")
    code, out, err = god_ray_here("export", finished_run.path, "--to", taken)
    assert (code, out) == (2, "")
    assert (
        err
        == f"{taken} is already there\n  export never overwrites.\n  Fix: choose another name or remove it\n"
    )
    assert taken.read_text() == "mine"
    code, out, err = god_ray_here("export", finished_run.path, "--to", nowhere / "deep" / "m")
    assert (code, out) == (2, "")
    assert f"there is no folder {nowhere / 'deep'}" in err
    assert not nowhere.exists()


def test_there_is_nothing_to_export_before_the_first_checkpoint(
    god_ray_here, small_run: RunFolder, tmp_path: Path
) -> None:
    for path in small_run.checkpoints.iterdir():
        path.rename(path.with_name(f"{path.name}.1.tmp"))
    code, _, err = god_ray_here("export", small_run.path, "--to", tmp_path / "m")
    assert code == 102
    assert "has no checkpoint yet" in err


# ---- watching


def test_watching_never_harms_the_run(small_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (small_run.path / "run.json").chmod(0o644)
    with watch()(small_run, STEPS):
        (small_run.path / "run.json").unlink()
    assert "progress is no longer shown" in capsys.readouterr().err


def test_a_run_is_referred_to_by_what_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert options.reference(str(tmp_path / "runs" / "a")) == "a"
    assert options.reference(str(tmp_path / "other" / "a")) == "other/a"
    assert options.reference(str(tmp_path.parent / "a")) == str(tmp_path.parent / "a")
    monkeypatch.setenv(options.STORAGE_VARIABLE, str(tmp_path / "other"))
    assert options.reference(str(tmp_path / "other" / "a")) == "a"
