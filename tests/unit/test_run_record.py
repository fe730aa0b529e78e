"""A damaged run folder is named as one, with what to do; a record that cannot be written ends the run."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from god_ray import cli
from god_ray.errors import RunExists, RunFailed, RunNotFound, UserError
from god_ray.loop.request import Request
from god_ray.runtime import control
from god_ray.runtime.run_folder import RunFolder, run_names
from god_ray.runtime.status import UNREADABLE, checkpoints, listing


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "a", "", {"state": "QUEUED", "reason": "created"})


def damage(folder: RunFolder, **fields: Any) -> None:
    """None takes a field away."""
    path = folder.path / "run.json"
    now = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in now.items() if value is not None}))


# ---- the record


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": 7}, "state is 7, and must be one of QUEUED, STARTING"),
        ({"state": "DONE"}, "state is 'DONE', and must be one of QUEUED, STARTING"),
        ({"state": ["RUNNING"]}, "state is ['RUNNING'], and must be"),
        ({"spec": "x" * 99}, f"spec is '{'x' * 59}..., and must be a mapping"),
        ({"num_steps": "7"}, "num_steps is '7', and must be a whole number"),
        ({"num_rows": True}, "num_rows is True, and must be a whole number"),
        ({"started_at": "now"}, "started_at is 'now', and must be a number or null"),
        ({"attempts": [1]}, "attempts is [1], and must be a list of mappings"),
        ({"workers": {}}, "workers is {}, and must be a list of mappings"),
        ({"reason": 1}, "reason is 1, and must be text"),
    ],
)
def test_a_field_of_a_wrong_kind_is_damage(run: RunFolder, fields: dict[str, Any], said: str) -> None:
    damage(run, **fields)
    with pytest.raises(RunNotFound) as caught:
        run.read()
    assert f"run.json is not a run's record: {said}" in caught.value.what
    assert caught.value.fix.startswith("restore it from a copy of the run")
    assert listing(run.path.parent)[0]["state"] == UNREADABLE


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 100_000, "\0"])
def test_what_is_no_record_has_a_fix(run: RunFolder, text: str) -> None:
    (run.path / "run.json").write_text(text)
    for ask in (run.read, lambda: run.update(reason="x")):
        with pytest.raises(RunNotFound) as caught:
            ask()
        assert caught.value.fix.startswith("restore it from a copy of the run")


def test_a_field_that_is_asked_for_and_missing_is_damage(run: RunFolder) -> None:
    record = pickle.loads(pickle.dumps(run.read()))
    assert record.get("spec") is None
    with pytest.raises(RunNotFound, match=r"run\.json lacks spec\.\n.*\n  Fix: restore it"):
        record["spec"]


@pytest.mark.parametrize("spec", [None, {}, {"recipe": 5}])
@pytest.mark.parametrize("command", ["verify", "resume", "scale", "export"])
def test_commands_that_need_the_spec_say_that_it_is_damaged(
    god_ray_here, small_run: RunFolder, tmp_path: Path, command: str, spec: dict[str, Any] | None
) -> None:
    damage(small_run, spec=spec, state="STOPPED")
    more = {"scale": ["2"], "export": ["--to", tmp_path / "out"]}.get(command, [])
    code, _, err = god_ray_here(command, small_run.path, *more)
    assert "Traceback" not in err
    assert "bug in god_ray" not in err
    assert code in (2, 102)


# ---- other parts


def test_a_file_in_place_of_a_checkpoint_does_not_count(small_run: RunFolder) -> None:
    before = checkpoints(small_run)
    (small_run.checkpoints / "step-00000099").write_text("")
    assert checkpoints(small_run) == before


@pytest.mark.parametrize("command", ["status", "verify", "resume", "ls", "ledger"])
def test_a_live_file_that_is_a_folder_is_told_without_a_traceback(
    god_ray_here, small_run: RunFolder, command: str
) -> None:
    damage(small_run, state="STOPPED")
    (small_run.ledger / "live.jsonl").unlink()
    (small_run.ledger / "live.jsonl").mkdir()
    where = ["--storage", small_run.path.parent] if command == "ls" else [small_run.path]
    code, out, err = god_ray_here(command, *where, *(["--debug"] if command == "resume" else []))
    assert "live.jsonl cannot be" in " ".join((out + err).split())
    assert "Traceback" not in err
    assert code == (0 if command == "ls" else 100)


def test_what_the_system_refuses_is_told_in_one_line(monkeypatch, capsys) -> None:
    for error, said in (
        (PermissionError(errno.EACCES, "Permission denied", "a/run.json"), "a/run.json: Permission denied\n"),
        (OSError(errno.EXDEV, "Invalid link", "a", None, "b"), "a -> b: Invalid link\n"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device\n"),
    ):

        def app(error: OSError = error, **_: object) -> None:
            raise error

        monkeypatch.setattr(cli, "app", app)
        assert cli.main([]) == 2
        assert capsys.readouterr().err == said


# ---- writing


def test_a_record_that_cannot_be_written_ends_the_run_for_good(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (run.path / "run.json").read_text()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for write in (lambda: run.update(generation=2), lambda: run.move("STARTING", "x")):
        with pytest.raises(RunFailed) as caught:
            write()
        assert str(caught.value) == (
            "run.json of run a could not be written\n  No space left on device\n  Fix: make room, then resume"
        )
        assert caught.value.data["final"]
    assert (run.path / "run.json").read_text() == before
    with pytest.raises(RunExists):
        RunFolder.create(run.path.parent, "a", "", {"state": "QUEUED"})


def test_the_folder_is_durable_after_the_rename(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((path.name, (run.path / "control" / "request.json").exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    control.send(run.control, Request("stop"))
    run.update(reason="x")
    shutil.rmtree(run.path / "control")
    names = [name for name, _ in synced]
    assert names[-3:] == ["control", ".run.json.tmp", "a"]
    assert [there for _, there in synced[-4:-2]] == [False, True]


def test_a_storage_on_another_machine_is_refused() -> None:
    for look in (lambda: RunFolder.find("r", "file://host/runs"), lambda: run_names("file://host/runs")):
        with pytest.raises(UserError, match=r"--storage file://host/runs names the machine 'host'"):
            look()
