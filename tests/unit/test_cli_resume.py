"""A run that is stopped or killed from outside, and gone on with: real processes, real signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from small_runs import RECIPE, project

from god_ray.monitor.ledger import Ledger


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "god_ray", *map(str, arguments)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)


def until_published(process: subprocess.Popen[str], folder: Path, steps: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if folder.is_dir() and sum(1 for _ in Ledger.read(folder)) >= steps:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError(f"{steps} steps were not published in time")


HELD = """\
def loss(model, batch):
    while HOLD.exists():  # the test is looking at the run
        time.sleep(0.01)
"""
IMPORTS = 'import time\nfrom pathlib import Path\n\nHOLD = Path(__file__).with_name("hold")\n'
LONG = ("--debug", "--set", "epochs=100", "--set", "checkpoint.every_steps=null", "--set", "eval.every=100")


def test_ctrl_c_stops_and_resume_goes_on_to_the_same_bits(god_ray_here, tmp_path: Path) -> None:
    spec = project(tmp_path, recipe=IMPORTS + RECIPE.replace("def loss(model, batch):\n", HELD))
    storage = ("--storage", tmp_path)
    process = start("train", spec, *LONG, *storage, "--name", "a")
    until_published(process, tmp_path / "a" / "ledger", 20)
    (tmp_path / "hold").touch()
    assert god_ray_here("status", "a", *storage)[0] == 101
    code, _, err = god_ray_here("resume", "a", "--debug", *storage)
    assert code == 2
    assert f"driven by pid {process.pid}" in err
    process.send_signal(signal.SIGINT)
    (tmp_path / "hold").unlink()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (103, "a\n")
    assert "run a STOPPED: asked to stop" in err
    assert "god-ray resume " in err
    code, out, _ = god_ray_here("status", "a", "--json", *storage)
    stopped = json.loads(out)
    assert code == 103
    assert stopped["last_checkpoint_step"] == stopped["step"] == stopped["last_digest_step"] < 700

    code, out, err = god_ray_here("resume", "a", "--debug", "--json", *storage)
    assert code == 0, err
    code, whole, _ = god_ray_here("train", spec, *LONG, *storage, "--name", "b", "--json")
    assert json.loads(out)["digest"] == json.loads(whole)["digest"]
    code, out, err = god_ray_here("verify", "a", "--against", "b", *storage)
    assert code == 0, out
    assert "700 steps in common with b: equal" in out


def test_a_killed_run_says_that_its_driver_is_gone(god_ray_here, small_spec: Path, tmp_path: Path) -> None:
    process = start("train", small_spec, *LONG, "--storage", tmp_path, "--name", "k")
    until_published(process, tmp_path / "k" / "ledger", 20)
    process.kill()
    process.communicate()
    code, out, _ = god_ray_here("status", "k", "--json", "--storage", tmp_path)
    assert code == 101
    assert json.loads(out)["reason"] == "its driver is gone; god-ray resume k"
    assert "its driver is gone" in god_ray_here("ls", "--storage", tmp_path)[1]
    code, _, err = god_ray_here("verify", "k", "--storage", tmp_path)
    assert code == 0, err
    code, out, err = god_ray_here("resume", "k", "--debug", "--storage", tmp_path)
    assert (code, out) == (0, "k\n"), err
    assert god_ray_here("verify", "k", "--storage", tmp_path)[0] == 0
