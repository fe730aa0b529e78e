"""A run that is kept in a bucket: its record, its driver's lease and its commands, seen from two machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import until

from god_ray.errors import RunExists, RunNotFound, UserError
from god_ray.loop.request import Request
from god_ray.runtime import control, lease, working_copy
from god_ray.runtime.run_folder import RunFolder, run_names
from god_ray.runtime.status import listing
from god_ray.storage.store import open_store, write_bytes


def made(storage: str, name: str = "demo") -> RunFolder:
    return RunFolder.create(storage, name, "epochs: 1\n", {"state": "QUEUED", "reason": "created", "id": "1"})


def test_a_run_is_made_found_and_changed_from_two_machines(s3: str, machine: object) -> None:
    storage = f"{s3}/runs"
    here = made(storage)
    assert list(here.store.list()) == ["run.json", "spec.yaml"]
    machine("b")
    there = RunFolder.find("demo", storage)
    assert (there.path / "spec.yaml").read_text() == "epochs: 1\n"
    assert there.path != here.path
    there.move("STARTING", "from b")
    there.update(generation=3)
    assert here.read()["reason"] == "from b"
    here.update(num_steps=9)
    assert (there.read()["generation"], there.read()["num_steps"]) == (3, 9)
    assert RunFolder.find(f"{storage}/demo", "runs").read()["generation"] == 3


def test_a_name_is_taken_once_and_a_wrong_one_is_told_the_others(s3: str, machine: object) -> None:
    made(s3)
    made(s3, "other")
    machine("b")
    with pytest.raises(RunExists):
        RunFolder.require_new(s3, "demo")
    with pytest.raises(RunExists):
        made(s3)
    with pytest.raises(RunNotFound, match=r"no run 'dmo'.*\n.*demo, other"):
        RunFolder.find("dmo", s3)
    with pytest.raises(RunNotFound):
        RunFolder.find("../demo", f"{s3}/x")


def test_runs_are_listed_with_their_driver(s3: str, machine: object) -> None:
    run = made(s3)
    made(f"{s3}/sweep", "trial-1")
    write_bytes(run.store, "checkpoints/step-00000001/manifest.json", b"{}")
    assert run_names(s3) == ["demo", "sweep/trial-1"]
    with run.drive():
        machine("b")
        rows = {row["name"]: row for row in listing(s3)}
    assert {name: row["driven"] for name, row in rows.items()} == {"demo": True, "sweep/trial-1": False}
    assert rows["demo"]["folder"] == f"{s3}/demo"
    assert listing(s3)[0]["driven"] is False


def test_a_second_driver_is_refused_on_every_machine(s3: str, machine: object) -> None:
    made(s3)
    run = RunFolder.find("demo", s3)
    with run.drive():
        assert run.is_driven()
        machine("b")
        code = "import sys; from god_ray.runtime.run_folder import RunFolder\n"
        code += "with RunFolder.find('demo', sys.argv[1]).drive(): print('two drivers')"
        other = subprocess.run([sys.executable, "-c", code, s3], capture_output=True, text=True, check=False)
        assert other.stdout == ""
        assert f"run demo is being driven by pid {os.getpid()} on " in other.stderr
    assert not run.is_driven()
    with RunFolder.find("demo", s3).drive():
        assert run.is_driven()


def test_a_lease_outlives_a_driver_elsewhere_for_a_while_and_one_here_not_at_all(
    s3: str, machine: object
) -> None:
    run = made(s3)
    here = {"pid": 1, "host": "elsewhere"}
    write_bytes(run.store, lease.NAME, json.dumps(here | {"at": 4e9}).encode())
    assert lease.holder(run.store) == "pid 1 on elsewhere"
    write_bytes(run.store, lease.NAME, json.dumps(here | {"at": 1e9}).encode())
    assert lease.holder(run.store) == ""
    code = "import sys; from god_ray.runtime import lease; from god_ray.storage.store import open_store\n"
    code += "lease._write(open_store(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", code, run.place], check=True
    )  # it is gone now, and was of this machine
    assert lease.holder(run.store) == ""


def test_a_lease_is_renewed(s3: str, machine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    run = made(s3)
    with run.drive():
        first = json.loads(run.store.read(lease.NAME))["at"]
        until(lambda: json.loads(run.store.read(lease.NAME))["at"] > first, "the lease is renewed")


def test_a_command_from_another_machine_is_heard_once(
    s3: str, machine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "ASK_EVERY_S", 0.01)
    run = made(s3)
    ear = control.listen(run.control)
    assert ear.poll() is None
    machine("b")
    control.send(RunFolder.find("demo", s3).control, Request("resize", 3))
    heard: list[Request] = []
    until(lambda: heard.extend(filter(None, [ear.poll()])) or heard, "the command is heard")
    control.clear(run.control, Request("resize", 3))
    assert control.pending(run.control) is None
    ear.close()
    assert heard == [Request("resize", 3)]


def test_a_storage_that_cannot_be_reached_is_named(s3: str, machine: object) -> None:
    with pytest.raises(UserError, match=r"s3://no-such-bucket-here/runs/demo cannot be created"):
        made("s3://no-such-bucket-here/runs")


def test_a_lease_that_was_taken_over_is_left_alone(
    s3: str, machine: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that stood still for a minute must not push out the one that leads the run now."""
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    run = made(s3)
    other = json.dumps({"pid": 1, "host": "elsewhere", "at": 4e9}).encode()
    with run.drive():

        def seen() -> bool:
            write_bytes(run.store, lease.NAME, other)  # again: a renewal may be on its way
            return "pid 1 on elsewhere leads the run now" in caplog.text

        until(seen, "it sees the other")
        assert run.store.read(lease.NAME) == other
    assert run.store.read(lease.NAME) == other


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"pid": null, "host": 1, "at": "x"}'])
def test_a_lease_that_is_none_holds_nobody(tmp_path: Path, content: bytes) -> None:
    store = open_store(str(tmp_path))
    write_bytes(store, lease.NAME, content)
    assert lease.holder(store) == ""


@pytest.mark.parametrize("content", [b"", b"[]", b'{"kind": "stop"}', b'{"kind": "resize", "workers": "x"}'])
def test_a_command_that_is_none_is_passed_over(tmp_path: Path, content: bytes) -> None:
    store = open_store(str(tmp_path))
    ear = control.listen(store)
    write_bytes(store, control.REQUEST, content)
    assert control.pending(store) is None
    assert ear.poll() is None
    control.send(store, Request("stop"))
    assert ear.poll() == Request("stop")


def test_threads_that_pull_at_once_see_whole_files(tmp_path: Path) -> None:
    """The driver, its progress and its workers on one machine share the working copy."""
    store = open_store(str(tmp_path / "store"))
    texts = [json.dumps({"n": n, "filling": "x" * 20_000}) for n in range(2)]
    write_bytes(store, "run.json", texts[0].encode())
    folder = tmp_path / "copy"

    def pull(thread: int) -> set[str]:
        seen = set()
        for turn in range(100):
            if thread == 0:
                write_bytes(store, "run.json", texts[turn % 2].encode())
            working_copy.pull(folder, store, ("run.json",))
            seen.add((folder / "run.json").read_text())
        return seen

    with ThreadPoolExecutor(4) as pool:
        for seen in pool.map(pull, range(4)):
            assert seen <= set(texts)
    assert os.listdir(folder) == ["run.json"]
