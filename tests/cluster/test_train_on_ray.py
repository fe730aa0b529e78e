"""Whole runs on real Ray: a TorchTrainer's workers give the bits of `--debug`, whatever happens to them.

What happens to workers in every detail is tried in tests/laws, without Ray. Here: that Ray does its part.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray.train
from laws.crew import DEBUG, TESTS, Crew, happened, ledger
from ruamel.yaml import YAML
from waiting import DEADLINE_S, until

from god_ray import api
from god_ray.api import Result
from god_ray.checkpoint.store import CheckpointStore
from god_ray.loop.request import Request
from god_ray.monitor.ledger import Ledger
from god_ray.plan import epoch_checksum
from god_ray.runtime import control
from god_ray.runtime.run_folder import RunFolder
from god_ray.storage.local import LocalStore

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]
ROWS, BATCH, EPOCHS = 70, 16, 4
_names = count()


class Gates:
    """Updates at which the run waits for the test; all are opened when the test is over."""

    def __init__(self, folder: Path) -> None:
        self.paths = {step: folder / f"gate-{step}" for step in range(1, 21)}

    def config(self, *steps: int) -> dict[str, str]:
        return {str(step): str(self.paths[step]) for step in steps}

    def reached(self, folder: RunFolder, step: int) -> None:
        """All workers have exchanged the gradients of the gate's step: the one before is published."""
        until(lambda: len(list(Ledger.read(folder.ledger))) >= step - 1, f"step {step - 1} is published")

    def open(self, *steps: int) -> None:
        for step in steps:
            self.paths[step].touch()


@pytest.fixture
def spec_of(crew: Crew, quick_disk: Path, rows_of: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    def spec(gates: dict[str, str] | None = None, workers: int = 2) -> dict[str, Any]:
        return {
            "recipe": str(TESTS / "recipes" / "gated.py"),
            "config": {"model": "batch_norm", "transform": True, "gates": gates or {}},
            "data": {"train": rows_of(ROWS, 2, 10), "eval": rows_of(21, seed=1)},
            "batch_size": BATCH,
            "epochs": EPOCHS,
            "seed": 5,
            "clip_norm": 1.0,
            "workers": workers,
            "name": f"ray-{os.getpid()}-{next(_names)}",
            "storage": str(quick_disk / "runs"),
            "determinism": {"isa": crew.isa, "digest_every": 1},
            "checkpoint": {"every_s": None, "every_steps": 3},
        }

    return spec


_reference: list[dict[str, Any]] = []


@pytest.fixture
def reference(crew: Crew, spec_of: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """The ledger of the run in one process, without Ray."""
    if not _reference:
        result, _ = crew.train(spec_of(), DEBUG)
        assert result.state == "SUCCEEDED"
        _reference.extend(happened(result))
    return _reference


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path)
    yield gates
    gates.open(*gates.paths)


@pytest.fixture
def background(gates: Gates) -> Iterator[ThreadPoolExecutor]:
    """Where the run is driven, beside the test; its gates are open before it is waited for."""
    pool = ThreadPoolExecutor(1)
    yield pool
    gates.open(*gates.paths)
    pool.shutdown()


def same(result: Result, reference: list[dict[str, Any]]) -> None:
    """Gap-free, each step once, each number of each step."""
    assert result.state == "SUCCEEDED", result.failure
    for ours, theirs in zip(happened(result), reference, strict=True):
        assert ours == theirs, f"step {theirs['step']}"
    for epoch in range(EPOCHS):
        sums = [int(r["row_checksum"]) for r in ledger(result) if r["epoch"] == epoch]
        assert sum(sums) % 2**64 == epoch_checksum(ROWS)


def folder_of(spec: dict[str, Any]) -> RunFolder:
    return RunFolder(Path(spec["storage"]) / spec["name"])


def pids(folder: RunFolder, generation: int) -> list[int]:
    until((folder.path / "run.json").exists, "the run is there")
    until(lambda: folder.read().get("generation") == generation, f"generation {generation} trains")
    return [worker["pid"] for worker in folder.read()["workers"]]


def test_the_bits_of_debug_and_a_checkpoint_for_ray_users(
    spec_of: Callable[..., dict[str, Any]], reference: list[dict[str, Any]]
) -> None:
    """Two workers; `Result.checkpoint` opens as Ray's own."""
    result = api.train(spec_of())
    same(result, reference)
    assert result.metrics == reference[-1]["eval"]
    record = RunFolder(result.folder).read()
    assert [w["lanes"] for w in record["workers"]] == [[0, 2], [2, 4]]
    assert len({w["pid"] for w in record["workers"]} | {os.getpid()}) == 3
    assert isinstance(result.checkpoint, ray.train.Checkpoint)
    with result.checkpoint.as_directory() as path:
        assert Path(path).name == f"step-{len(reference):08d}"
        store = CheckpointStore(LocalStore(Path(path).parent), 0)
        snapshot, meta = store.load(len(reference))
    assert snapshot.digest() == meta["digest"] == result.digest


CARRIED = """
import os
from pathlib import Path

def preprocess(table):
    (Path(__file__).parent / f"read-by-{os.getpid()}-{table.num_rows}-{table['y'][0]}").touch()
    return table
"""


def test_ray_data_carries_the_rows_of_real_workers(
    spec_of: Callable[..., dict[str, Any]],
    rows_of: Callable[..., str],
    background: ThreadPoolExecutor,
    gates: Gates,
    tmp_path: Path,
) -> None:
    """By default: held in their second step, the workers get their later windows from Ray's processes."""
    (tmp_path / "carried.py").write_text(CARRIED)
    spec = spec_of(gates.config(2)) | {"epochs": 1}
    spec["data"] = {
        "train": rows_of(960, 2, 20),
        "shuffle": "window",
        "window": 1,
        "preprocess": f"{tmp_path / 'carried.py'}:preprocess",
    }
    folder = folder_of(spec)
    run: Future[Result] = background.submit(api.train, spec)
    own = {os.getpid(), *pids(folder, 1)}

    def carried() -> int:
        return sum(int(path.name.split("-")[2]) not in own for path in tmp_path.glob("read-by-*"))

    until(lambda: carried() >= 6, "processes of Ray's have read some windows")
    logs = [folder.path / "logs" / f"worker-{rank}.log" for rank in range(2)]
    gates.open(2)
    assert run.result(DEADLINE_S).state == "SUCCEEDED"
    read = [json.loads(log.read_text().rpartition("read: ")[2].splitlines()[0]) for log in logs]
    for counters in read:
        assert counters["executions"] >= 1
        assert counters["rows_by_ray"] + counters["rows_by_worker"] == 480
    assert sum(counters["rows_by_ray"] for counters in read) > 0


def test_one_worker_and_then_all_are_killed(
    spec_of: Callable[..., dict[str, Any]],
    reference: list[dict[str, Any]],
    background: ThreadPoolExecutor,
    gates: Gates,
) -> None:
    """Ray starts them again, from the checkpoint: the same bits, every step once, three generations."""
    spec = spec_of(gates.config(8, 14))
    folder = folder_of(spec)
    run: Future[Result] = background.submit(api.train, spec)
    first = pids(folder, 1)
    gates.reached(folder, 8)
    os.kill(first[1], signal.SIGKILL)
    until(lambda: folder.read()["state"] == "RECOVERING", "it is written down")
    assert folder.read()["reason"] == "worker 1 died", "whoever waits knows why"
    gates.open(8)
    second = pids(folder, 2)
    gates.reached(folder, 14)
    for pid in second:
        os.kill(pid, signal.SIGKILL)
    gates.open(14)
    result = run.result(DEADLINE_S)
    same(result, reference)
    record = folder.read()
    assert record["generation"] == 3
    assert record["recoveries"] == 2
    assert len(record["attempts"]) == 1, "it was Ray's restart"
    assert not set(first) & set(second)
    assert [r["generation"] for r in ledger(result)] == [1] * 7 + [2] * 6 + [3] * 7


def test_what_fails_twice_in_one_step_fails_for_good(spec_of: Callable[..., dict[str, Any]]) -> None:
    """An error of the recipe's is tried once more, not as often as workers may be lost."""
    spec = spec_of() | {"failures": {"max": 9}}
    spec["config"]["fails"] = 5
    result = api.train(spec)
    assert (result.state, result.step) == ("FAILED", 4)
    assert result.failure is not None
    assert "ArithmeticError: update 5 cannot be" in result.failure.what
    assert result.failure.why.startswith("It came twice in the same step")
    assert folder_of(spec).read()["generation"] == 2


def test_what_fails_once_in_all_workers_is_done_again(
    spec_of: Callable[..., dict[str, Any]], reference: list[dict[str, Any]], tmp_path: Path
) -> None:
    """A failure that they share is one failure."""
    spec = spec_of() | {"failures": {"max": 1}}
    spec["config"] |= {"fails": 5, "once": str(tmp_path / "once")}
    result = api.train(spec)
    same(result, reference)
    assert folder_of(spec).read()["recoveries"] == 1


def test_stopped_before_its_workers_train(
    spec_of: Callable[..., dict[str, Any]], background: ThreadPoolExecutor, reference: list[dict[str, Any]]
) -> None:
    """While there is no room for them, too; scaled down to what there is room for, it trains."""
    holder = ray.remote(num_cpus=3)(threading.Event).remote()
    ray.get(holder.is_set.remote())
    spec = spec_of()
    folder = folder_of(spec)
    run: Future[Result] = background.submit(api.train, spec)
    until((folder.path / "run.json").exists, "the run is there")
    until(lambda: folder.read()["state"] == "WAITING", "it says what it waits for")
    assert folder.read()["reason"] == "2 workers need 2 CPU, 1 of the cluster's 4 are free"
    control.send(folder.control, Request("stop"))
    result = run.result(DEADLINE_S)
    assert (result.state, result.step) == ("STOPPED", 0)
    again: Future[Result] = background.submit(api.resume, spec["name"], spec["storage"])
    until(lambda: folder.read()["state"] == "WAITING", "it waits again")
    control.send(folder.control, Request("resize", 1))
    same(again.result(DEADLINE_S), reference)
    ray.kill(holder)


def test_ended_at_once(
    spec_of: Callable[..., dict[str, Any]], background: ThreadPoolExecutor, gates: Gates
) -> None:
    """Whose Ray it is does not matter: the workers go, and the run can go on."""
    spec = spec_of(gates.config(8))
    folder = folder_of(spec)
    signals = background.submit(_interrupt_twice, folder, gates)
    result = api.train(spec)
    workers = signals.result(DEADLINE_S)
    assert (result.state, result.reason) == ("STOPPED", "stopped at once by a second Ctrl-C")
    until(lambda: not any(psutil.pid_exists(pid) for pid in workers), "its workers are gone")
    assert len(ledger(result)) == 7


def _interrupt_twice(folder: RunFolder, gates: Gates) -> list[int]:
    workers = pids(folder, 1)
    gates.reached(folder, 8)
    os.kill(os.getpid(), signal.SIGINT)
    until(lambda: control.pending(folder.control), "the first is heard")
    os.kill(os.getpid(), signal.SIGINT)
    return workers


def test_resized_while_it_runs(
    spec_of: Callable[..., dict[str, Any]],
    reference: list[dict[str, Any]],
    background: ThreadPoolExecutor,
    gates: Gates,
) -> None:
    """Asked for three workers in step 7, the run goes on with three after it."""
    spec = spec_of(gates.config(7))
    folder = folder_of(spec)
    run: Future[Result] = background.submit(api.train, spec)
    pids(folder, 1)
    gates.reached(folder, 7)
    control.send(folder.control, Request("resize", 3))
    gates.open(7)
    result = run.result(DEADLINE_S)
    same(result, reference)
    assert [r["num_workers"] for r in ledger(result)] == [2] * 8 + [3] * 12
    assert [a["workers"] for a in folder.read()["attempts"]] == [2, 3]


def test_the_driver_is_killed(
    spec_of: Callable[..., dict[str, Any]],
    reference: list[dict[str, Any]],
    gates: Gates,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """`god-ray train` with a Ray of its own, SIGKILLed; its workers go; resumed here with another size."""
    spec = spec_of(gates.config(8))
    file = tmp_path / "run.yaml"
    YAML().dump(spec, file)
    command = [sys.executable, "-m", "god_ray", "train", str(file)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = folder_of(spec)
    workers = pids(folder, 1)
    gates.reached(folder, 8)
    ray_of_its_own = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    driver.wait()
    request.addfinalizer(
        lambda: [p.kill() for p in ray_of_its_own if p.is_running()]
    )  # it takes a minute to go
    assert not folder.is_driven()
    assert folder.read()["state"] == "RUNNING"
    until(lambda: not any(psutil.pid_exists(pid) for pid in workers), "the dead driver's workers are gone")
    gates.open(8)
    result = api.resume(spec["name"], Path(spec["storage"]), workers=1)
    same(result, reference)
    assert {r["num_workers"] for r in ledger(result)} == {1, 2}
