"""Storage that two workers do not share, or may not both write: refused before training (case 4.08)."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from small_runs import RECIPE, STEPS, project, trained

from god_ray import api
from god_ray.errors import UserError
from god_ray.monitor.ledger import Ledger
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.shared import require_shared
from god_ray.storage.local import LocalStore

NODE = socket.gethostname()
NOBODY = 65534


class Together:
    """A group of threads of this process."""

    size = 2

    def __init__(self, rank: int, table: list[bytes], meeting: threading.Barrier) -> None:
        self.rank, self._table, self._meeting = rank, table, meeting

    def gather_bytes(self, data: bytes) -> list[bytes]:
        self._table[self.rank] = data
        self._meeting.wait(30)
        told = list(self._table)
        self._meeting.wait(30)
        return told

    def all_gather(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        raise NotImplementedError

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor, *sizes: list[int]) -> None:
        raise NotImplementedError

    def barrier(self) -> None:
        self.gather_bytes(b"")


def asked(*roots: Path, user_of_second: int | None = None) -> list[str]:
    """What two workers who see these folders as the storage are told; nothing if all is well."""
    table, meeting = [b""] * 2, threading.Barrier(2)

    def ask(rank: int) -> str:
        if rank and user_of_second is not None:  # of this thread alone
            ctypes.CDLL(None).setfsuid(user_of_second)
        try:
            require_shared(LocalStore(roots[rank]), Together(rank, table, meeting))
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(ask, range(2)))


def test_one_folder_for_all_is_silent_and_left_as_it_was(tmp_path: Path) -> None:
    assert asked(tmp_path, tmp_path) == ["", ""]
    assert LocalStore(tmp_path).list() == {}


def test_two_folders_are_refused_by_all_naming_node_and_place(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    b.mkdir()
    told = asked(a, b)
    for text, place in zip(told, (a, b)):
        assert f"storage {place} cannot be used by all workers: " in text
        assert f"node {NODE}: what the leader wrote is not there." in text
        assert "Fix: use a folder that all nodes share and may write, or s3://bucket/prefix." in text
    assert (LocalStore(a).list(), LocalStore(b).list()) == ({}, {})


def test_what_an_earlier_attempt_left_in_another_folder_is_no_sign(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    b.mkdir()
    (b / "probe-0").write_bytes(b"0123456789abcdef")
    assert all("another folder of the same name is there" in text for text in asked(a, b))


def test_a_leader_that_cannot_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = asked(tmp_path / "file", tmp_path / "file")
    assert all(f"node {NODE}: {tmp_path}/file: write of probe-0: " in text for text in told)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_a_folder_that_only_the_driver_may_write(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        assert asked(Path(name), Path(name)) == ["", ""]
        told = asked(Path(name), Path(name), user_of_second=NOBODY)
        assert LocalStore(Path(name)).list() == {}
    for text in told:
        assert f"node {NODE}: {name}: write of probe-1: Permission denied" in text
        assert text.count("node ") == 1


TURNS = RECIPE.replace(
    "def loss(model, batch):\n",
    """import subprocess
from pathlib import Path

SAVED = Path(PLACE)
turned = False


def loss(model, batch):
    global turned
    if not turned and list(SAVED.glob("*/manifest.json")):
        turned = True
        subprocess.run(["mount", "--bind", str(SAVED), str(SAVED)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(SAVED)], check=True)
""",
)


def test_a_folder_that_turns_read_only_after_the_first_checkpoint(tmp_path: Path) -> None:
    """Place, cause and need are told, the checkpoint is whole, and the run goes on when it can be written."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    every = {"checkpoint": {"every_steps": 4, "every_s": None}}
    undisturbed = trained(project(tmp_path / "q", **every), tmp_path / "runs", "undisturbed")
    saved = tmp_path / "runs" / "demo" / "checkpoints"
    spec = project(tmp_path / "p", TURNS.replace("PLACE", repr(str(saved))), **every)
    try:
        result = api.train(spec, debug=True, name="demo", storage=str(tmp_path / "runs"))
    finally:
        subprocess.run(["umount", str(saved)], check=True)
    assert result.state == "FAILED"
    assert result.reason == f"checkpoint {saved}/step-00000008 could not be written"
    assert "Read-only file system" in str(result.failure)
    assert "needed about" in str(result.failure)
    assert [path.parent.name for path in saved.glob("*/manifest.json")] == ["step-00000004"]
    (tmp_path / "p" / "recipe.py").write_text(RECIPE)
    assert api.resume("demo", str(tmp_path / "runs"), debug=True).step == STEPS
    assert bits(RunFolder(tmp_path / "runs" / "demo")) == bits(undisturbed)


def bits(run: RunFolder) -> list[tuple[object, ...]]:
    return [(record["step"], record["loss"], record.get("digest")) for record in Ledger.read(run.ledger)]
