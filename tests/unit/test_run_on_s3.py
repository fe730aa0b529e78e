"""Whole runs whose storage is a bucket: a disk's bits, looked at and resumed from another machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from small_runs import RECIPE, STEPS, project, trained

from god_ray import api
from god_ray.loop.request import Request
from god_ray.monitor.ledger import Ledger
from god_ray.runtime import control
from god_ray.runtime.model import export
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.status import facts
from god_ray.runtime.verify import verify
from god_ray.storage.store import open_store, write_bytes

STOPS = RECIPE.replace(
    "def loss(model, batch):\n",
    """import threading

calls = 0


def loss(model, batch):
    global calls
    calls += model.training
    if calls == STOP_AT:
        from god_ray.loop.request import Request
        from god_ray.runtime import control
        from god_ray.storage.store import open_store

        control.send(open_store(CONTROL), Request("stop"))
    if calls > STOP_AT:
        threading.Event().wait(0.05)  # a command in a bucket is heard in its own time
""",
)
LANES = 4


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return trained(project(folder / "p"), folder / "runs", "demo")


def same(run: RunFolder, reference: RunFolder) -> None:
    """Step by step; digests where both have one, as a stop leaves one more, and at the end."""
    keys = ("step", "loss", "num_rows", "row_checksum", "eval")
    ours, theirs = (list(Ledger.read(folder.ledger)) for folder in (run, reference))
    assert [[r.get(k) for k in keys] for r in ours] == [[r.get(k) for k in keys] for r in theirs]
    digests = [(a["digest"], b["digest"]) for a, b in zip(ours, theirs) if "digest" in a and "digest" in b]
    assert [a for a, _ in digests] == [b for _, b in digests]
    assert ours[-1]["digest"] == theirs[-1]["digest"]


def test_the_same_bits_from_a_bucket_and_from_any_machine(
    s3: str, machine: object, tmp_path: Path, on_disk: RunFolder
) -> None:
    result = api.train(project(tmp_path / "p"), debug=True, name="demo", storage=s3)
    assert (result.state, result.place) == ("SUCCEEDED", f"{s3}/demo")
    machine("b")
    there = RunFolder.find("demo", s3)
    same(there, on_disk)
    told = facts(there)
    assert (told["state"], told["step"], told["last_checkpoint_step"]) == ("SUCCEEDED", STEPS, STEPS)
    assert told["last_digest"] == result.digest == facts(on_disk)["last_digest"]
    assert verify(there, on_disk).differences == []
    export(there, tmp_path / "a.safetensors")
    export(on_disk, tmp_path / "b.safetensors")
    ours, theirs = load_file(tmp_path / "a.safetensors"), load_file(tmp_path / "b.safetensors")
    assert {name: t.tolist() for name, t in ours.items()} == {name: t.tolist() for name, t in theirs.items()}
    names = [name for name in there.store.list() if not name.startswith(("ledger/", "checkpoints/"))]
    assert names == ["run.json", "spec.yaml"]
    assert api.evaluate(f"{s3}/demo") == api.evaluate("demo", storage=s3) == {**result.metrics}


def test_stopped_here_resumed_there(
    s3: str, machine: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command by the bucket stops it; another machine, which has the user's files only, goes on."""
    monkeypatch.setattr(control, "ASK_EVERY_S", 0.005)
    long = {"steps": 100, "epochs": None, "checkpoint": {"every_steps": 30}}
    undisturbed = trained(project(tmp_path / "q", **long), tmp_path / "runs", "demo")
    recipe = STOPS.replace("STOP_AT", str(9 * LANES)).replace("CONTROL", repr(f"{s3}/demo/control"))
    first = api.train(project(tmp_path / "p", recipe, **long), debug=True, name="demo", storage=s3)
    assert first.state == "STOPPED"
    assert 9 <= first.step < 100
    machine("b")
    (tmp_path / "p" / "recipe.py").write_text(RECIPE)
    second = api.resume("demo", s3, debug=True)
    assert (second.state, second.step) == ("SUCCEEDED", 100)
    same(RunFolder.find("demo", s3), undisturbed)
    machine("a")
    same(RunFolder.find("demo", s3), undisturbed)


def test_a_run_folder_that_was_copied_into_a_bucket_goes_on_there(
    s3: str, machine: object, tmp_path: Path, on_disk: RunFolder
) -> None:
    run = stopped(tmp_path)
    bucket = open_store(f"{s3}/moved")
    for path in run.path.rglob("*"):
        if path.is_file():
            write_bytes(bucket, path.relative_to(run.path).as_posix(), path.read_bytes())
    shutil.rmtree(run.path)
    result = api.resume(f"{s3}/moved", debug=True)
    assert (result.state, result.step) == ("SUCCEEDED", STEPS)
    same(RunFolder.find("moved", s3), on_disk)


def test_a_run_folder_that_was_moved_goes_on_there(tmp_path: Path, on_disk: RunFolder) -> None:
    run = stopped(tmp_path)
    moved = tmp_path / "else where %20" / "other"
    moved.parent.mkdir()
    shutil.move(run.path, moved)
    result = api.resume(str(moved), debug=True)
    assert (result.state, result.folder) == ("SUCCEEDED", moved)
    same(RunFolder(moved), on_disk)


def test_a_run_folder_that_was_copied_goes_on_in_both_places(tmp_path: Path, on_disk: RunFolder) -> None:
    run = stopped(tmp_path)
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "copy"))
    for place in (run, copy):
        assert api.resume(place.place, debug=True).state == "SUCCEEDED"
        same(place, on_disk)


def stopped(tmp_path: Path) -> RunFolder:
    """The undisturbed run's twin, stopped on its way."""
    place = str(tmp_path / "runs" / "demo" / "control")
    recipe = STOPS.replace("STOP_AT", str(9 * LANES)).replace("CONTROL", repr(place))
    spec = project(tmp_path / "p", recipe)
    first = api.train(spec, debug=True, name="demo", storage=str(tmp_path / "runs"))
    assert (first.state, first.step) == ("STOPPED", 9)
    (tmp_path / "p" / "recipe.py").write_text(RECIPE)
    run = RunFolder(tmp_path / "runs" / "demo")
    control.send(run.control, Request("stop"))  # nobody took it away: a driver that starts does
    return run
