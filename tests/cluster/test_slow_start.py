"""A start that takes long says what it waits for, and is no failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_project import LAYERS, write

from god_ray import api
from god_ray.runtime.run_folder import RunFolder

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]
DEADLINE_S = 90.0
# The module of the recipe: imported at once by the command that tries it, behind a gate by each worker.
SLOW = """
import os, pathlib, threading, time

if "RANK" in os.environ:
    pathlib.Path(__file__).with_name(f"importing-{os.environ['RANK']}").touch()
    deadline = time.monotonic() + 90
    while not pathlib.Path(__file__).with_name("gate").exists():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
"""


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s until {what}"
        threading.Event().wait(0.02)


def test_a_long_import_of_the_recipe_is_told_and_costs_no_retry(tmp_path: Path) -> None:
    spec = write(tmp_path / "project")
    (spec.parent / "layers.py").write_text(SLOW + LAYERS)
    folder = RunFolder(tmp_path / "runs" / "slow")
    given = {"name": "slow", "storage": str(tmp_path / "runs"), "config": {"quality": 0.5}}
    with ThreadPoolExecutor(1) as background:
        run = background.submit(api.train, spec, **given, failures={"max": 0})
        try:
            for rank in range(2):
                until((spec.parent / f"importing-{rank}").exists, f"worker {rank} imports the recipe")
            waiting = folder.read()
        finally:
            (spec.parent / "gate").touch()
        result = run.result(DEADLINE_S)
    assert (waiting["state"], waiting["reason"]) == ("STARTING", "2 workers started, building the recipe")
    assert result.state == "SUCCEEDED", result.failure
    ended = folder.read()
    assert (ended.get("recoveries", 0), len(ended["attempts"]), ended["generation"]) == (0, 1, 1)
