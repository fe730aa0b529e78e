"""`god-ray scale` on a live run: the size changes, the bits do not; what it refuses, and that it is light."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import small_project
from small_project import god_ray, record

from god_ray.loop.request import Request
from god_ray.runtime import control
from god_ray.runtime.run_folder import RunFolder


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return small_project.write(tmp_path / "project")


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def live(spec: Path, tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A run of two workers with more steps than it will get to make."""
    words = ["train", spec, "--storage", tmp_path, "--name", "live", "--json", "--set", "epochs=100000"]
    command = [sys.executable, "-m", "god_ray", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        run = tmp_path / "live"
        wait_for(lambda: (run / "ledger" / "live.jsonl").exists(), process)
        yield run, process
    finally:
        process.kill()
        process.communicate()


def sizes(run: Path) -> list[int]:
    return [attempt["workers"] for attempt in record(run)["attempts"]]


def ledger(run: Path) -> list[dict[str, Any]]:
    done = god_ray("ledger", run, "--json", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.cluster
def test_a_live_run_changes_its_size_and_not_its_bits(
    live: tuple[Path, subprocess.Popen[str]], spec: Path, tmp_path: Path
) -> None:
    run, process = live
    for size, last in ((1, [2, 1]), (2, [2, 1, 2])):
        done = god_ray("scale", run, size, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "the result stays the same" in done.stderr
        wait_for(lambda last=last: sizes(run) == last and record(run)["state"] == "RUNNING", process)
    again = god_ray("scale", run, 2, cwd=tmp_path)
    assert again.returncode == 0
    assert "already" in again.stderr
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 103, err
    ended = json.loads(out)
    steps = ledger(run)
    assert [line["step"] for line in steps] == list(range(1, ended["step"] + 1))
    assert {1, 2} == {line["num_workers"] for line in steps}
    undisturbed = small_project.reference_digest(
        spec, tmp_path / "reference", "epochs=null", f"steps={ended['step']}"
    )
    assert ended["digest"] == undisturbed


@pytest.mark.parametrize("workers", [0, 5, -1])
def test_lanes_bound_the_workers(tmp_path: Path, workers: int) -> None:
    stand_in(tmp_path, "RUNNING")
    done = god_ray("scale", "--storage", tmp_path, "--", "r", workers, cwd=tmp_path)
    assert done.returncode == 2
    assert "lanes is part of the result" in done.stderr
    assert not (tmp_path / "r" / "control" / "request.json").exists()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("RUNNING", "its driver is gone"),
        ("STOPPED", "god-ray resume r --workers 3"),
        ("SUCCEEDED", "nothing left to do"),
    ],
)
def test_only_a_live_run_is_scaled(tmp_path: Path, state: str, words: str) -> None:
    stand_in(tmp_path / "runs", state)
    done = god_ray("scale", "r", 3, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "runs" / "r" / "control" / "request.json").exists()


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    done = god_ray("scale", "nobody", 3, cwd=tmp_path)
    assert done.returncode == 102


def test_scaling_needs_neither_ray_nor_torch(tmp_path: Path) -> None:
    folder = stand_in(tmp_path, "RUNNING")
    code = """
import sys
from god_ray.cli.scale import scale
from pathlib import Path
scale(sys.argv[1], 3, Path("runs"))
print(*(name for name in ("ray", "torch", "pyarrow", "numpy") if name in sys.modules))
"""
    with folder.drive():
        command = [sys.executable, "-c", code, str(folder.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert control.pending(folder.control) == Request("resize", 3)


def stand_in(storage: Path, state: str) -> RunFolder:
    """A run folder with what scaling looks at."""
    record = {"state": state, "reason": "for a test", "spec": {"lanes": 4}, "attempts": [{"workers": 2}]}
    return RunFolder.create(storage, "r", "", record)
