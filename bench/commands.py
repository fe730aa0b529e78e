"""Whole commands as a user runs them, `god-ray train` and the stock script, and when their steps came.

In: a data set and sizes. Out: a process and the file in which its steps appear, one JSON line each with
the unix second `at`. Must not know what is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure

PATIENCE_S = 300


@dataclass
class Command:
    process: subprocess.Popen[bytes]
    started_at: float
    steps: Path
    """The folder of a ledger, or a file of lines."""
    folder: Path

    def first_step_s(self) -> float:
        """Seconds from the command to its first step, as another process sees it."""
        live = self.steps / "live.jsonl" if self.steps.suffix == "" else self.steps
        deadline = self.started_at + PATIENCE_S
        while time.time() < deadline and self.process.poll() is None:
            if live.exists() and live.stat().st_size:
                return time.time() - self.started_at
            time.sleep(0.01)
        raise TimeoutError(f"no step; see {self.folder / 'output.txt'}")

    def finish(self) -> float:
        """Seconds from the command to its end. Raises when it failed."""
        if self.process.wait(PATIENCE_S) != 0:
            raise RuntimeError((self.folder / "output.txt").read_text()[-3000:])
        return time.time() - self.started_at

    def records(self) -> list[dict[str, Any]]:
        if self.steps.suffix:
            return [json.loads(line) for line in self.steps.read_text().splitlines()]
        from god_ray.monitor.ledger import Ledger

        return list(Ledger.read(self.steps))


def god_ray(folder: Path, spec: dict[str, Any]) -> Command:
    """`god-ray train run.yaml` in a new folder."""
    folder.mkdir()
    (folder / "run.yaml").write_text(json.dumps(spec))
    arguments = [
        "-m",
        "god_ray",
        "train",
        str(folder / "run.yaml"),
        "--name",
        "run",
        "--storage",
        str(folder),
    ]
    return _start(arguments, folder / "run" / "ledger", folder)


def stock(folder: Path, data: Path, epochs: int, workers: int, model: str) -> Command:
    """`python stock_train.py` in a new folder."""
    folder.mkdir()
    script, steps = measure.FOLDER / "stock_train.py", folder / "steps.jsonl"
    sizes = ["--epochs", str(epochs), "--workers", str(workers), "--model", model]
    return _start([str(script), str(data), str(steps), *sizes], steps, folder)


def _start(arguments: Sequence[str], steps: Path, folder: Path) -> Command:
    at = time.time()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    return Command(process, at, steps, folder)
