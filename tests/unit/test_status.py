"""`ls` and `status`: true for runs that go on, ended, lost their driver or are damaged; quick and light."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import STEPS

from god_ray.errors import RunNotFound
from god_ray.monitor import newest as module
from god_ray.monitor.ledger import Ledger
from god_ray.monitor.newest import newest
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.status import UNREADABLE, checkpoints, facts, listing

KEYS = {
    *("name", "state", "reason", "driven", "epoch", "step", "num_steps", "loss", "num_workers", "started_at"),
    *("ended_at", "folder", "steps_per_epoch", "metrics", "workers", "generation", "recoveries", "attempts"),
    *("last_checkpoint_step", "last_digest", "last_digest_step", "created_at", "updated_at", "init_from"),
}


def record(step: int, **more: object) -> dict[str, object]:
    place = {"step": step, "epoch": 0, "step_in_epoch": step - 1, "num_rows": 2, "row_checksum": "7"}
    return place | {"loss": 1 / step, "num_workers": 2, "generation": 1} | more


# ---- the newest record


@settings(deadline=None, max_examples=40)
@given(
    marks=st.lists(st.booleans(), max_size=30),
    seals=st.sets(st.integers(1, 30)),
    torn=st.sampled_from([b"", b'{"step":99,"mark":1', b"\x00\x00\n"]),
    block=st.integers(10, 400),
)
def test_the_newest_record_with_a_key_is_found_wherever_it_is(marks, seals, torn, block) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_BYTES", block)
        path = Path(folder) / "ledger"
        with Ledger.open_writer(path) as ledger:
            for step, marked in enumerate(marks, start=1):
                ledger.publish(record(step, mark=step) if marked else record(step, note="mark"))
                if step in seals:
                    ledger.seal()
        with open(path / "live.jsonl", "ab") as file:
            file.write(torn)
        last, marked = newest(path), newest(path, "mark")
        wanted = [step for step, is_marked in enumerate(marks, start=1) if is_marked]
        assert (last["step"] if last else 0) == len(marks)
        assert (marked["step"] if marked else 0) == max(wanted, default=0)


def test_there_is_no_newest_record_without_a_ledger(tmp_path: Path) -> None:
    assert newest(tmp_path / "nothing") is None


# ---- the facts


def test_a_finished_run(finished_run: RunFolder) -> None:
    found = facts(finished_run)
    assert set(found) == KEYS
    assert (found["state"], found["reason"], found["driven"]) == ("SUCCEEDED", "all steps done", False)
    assert found["step"] == found["num_steps"] == STEPS
    assert (found["epoch"], found["steps_per_epoch"]) == (2, 7)
    lines = list(Ledger.read(finished_run.ledger))
    assert found["loss"] == lines[-1]["loss"]
    assert (found["last_digest"], found["last_digest_step"]) == (lines[-1]["digest"], STEPS)
    assert found["last_checkpoint_step"] == STEPS
    assert found["metrics"]["num_rows"] == 13
    assert found["workers"] == [], "its processes are gone, and their pids may be others' now"
    assert found["started_at"] <= found["updated_at"] <= found["ended_at"]
    assert json.dumps(found, allow_nan=False)


def test_what_a_run_that_has_just_been_created_cannot_know_is_none(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "new", "", {"state": "QUEUED", "reason": "created"})
    found = facts(folder)
    assert set(found) == KEYS
    assert (found["step"], found["loss"], found["last_checkpoint_step"]) == (0, None, None)


def test_a_lost_driver_is_said_and_a_living_one_is_not(small_run: RunFolder) -> None:
    small_run.update(state="RUNNING", reason="training")
    assert facts(small_run)["reason"] == "its driver is gone; god-ray resume done"
    with small_run.drive():
        found = facts(small_run)
        assert found["reason"] == "training"
        assert [set(worker) for worker in found["workers"]] == [{"id", "pid", "node", "rank", "lanes"}]
        assert found["workers"][0]["lanes"] == [0, 4]
        assert listing(small_run.path.parent)[0]["driven"]
    small_run.update(state="STOPPED", reason="asked to stop")
    assert facts(small_run)["reason"] == "asked to stop"


def test_looking_does_not_keep_a_driver_out(small_run: RunFolder) -> None:
    facts(small_run)
    with small_run.drive():
        pass


def test_only_whole_checkpoints_count(small_run: RunFolder) -> None:
    before = checkpoints(small_run)
    assert max(before) == STEPS
    (small_run.checkpoints / "step-00000099").mkdir()
    shutil.copytree(
        small_run.checkpoints / f"step-{STEPS:08d}", small_run.checkpoints / "step-00000100.1.tmp"
    )
    assert checkpoints(small_run) == before


# ---- the listing


def test_a_damaged_run_is_a_line_of_its_own(small_run: RunFolder) -> None:
    storage = small_run.path.parent
    shutil.copytree(small_run.path, storage / "second")
    (storage / "second" / "run.json").write_text("{")
    (storage / "no run").mkdir()
    found = {summary["name"]: summary for summary in listing(storage)}
    assert set(found) == {"done", "second"}
    assert found["done"]["state"] == "SUCCEEDED"
    assert found["second"]["state"] == UNREADABLE
    assert "run.json cannot be read" in found["second"]["reason"]
    with pytest.raises(RunNotFound, match=r"run\.json cannot be read"):
        facts(RunFolder(storage / "second"))


def test_runs_are_listed_as_they_were_started(small_run: RunFolder) -> None:
    for name, started_at in (("a", 30.0), ("b", 10.0), ("c", 20.0)):
        shutil.copytree(small_run.path, small_run.path.parent / name)
        RunFolder(small_run.path.parent / name).update(started_at=started_at)
    assert [summary["name"] for summary in listing(small_run.path.parent)] == ["b", "c", "a", "done"]
    assert listing(small_run.path.parent / "nowhere") == []


def test_reading_commands_load_nothing_heavy(finished_run: RunFolder) -> None:
    """What would keep them from answering at once."""
    code = (
        "import sys, god_ray.cli\n"
        f"storage, name = {str(finished_run.path.parent)!r}, {finished_run.name!r}\n"
        "for words in (['status', name], ['ls'], ['ledger', name], ['status', name, '--json']):\n"
        "    assert god_ray.cli.main([*words, '--storage', storage]) == 0\n"
        "print(*sorted(m for m in sys.modules if '.' not in m), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stderr.split()) & {"torch", "ray", "pyarrow", "numpy", "ruamel", "pandas"}
