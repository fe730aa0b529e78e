"""Two writers: the second waits, saying for whom, then gives up by the holder's process id, or takes over."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

import pytest
from test_ledger import fill, record, steps

from god_ray.errors import RunFailed
from god_ray.monitor import lock
from god_ray.monitor.ledger import Ledger


def hold(folder: Path) -> tuple[int, int]:
    """A process that holds the ledger until it dies: (pid, pipe that says so)."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        ledger = Ledger.open_writer(folder)
        ledger.publish(record(ledger.last_step + 1))
        os.write(theirs, b"held")
        signal.pause()
        os._exit(0)
    os.close(theirs)
    assert os.read(ours, 10) == b"held"
    return pid, ours


def test_the_second_writer_names_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pid, pipe = hold(tmp_path)
    try:
        with caplog.at_level(logging.WARNING), pytest.raises(RunFailed, match=f"written by process {pid} on"):
            Ledger.open_writer(tmp_path, patience_s=0.2)
        assert [f"process {pid}" in entry.getMessage() for entry in caplog.records] == [True]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pipe)
    with Ledger.open_writer(tmp_path, patience_s=0) as ledger:  # the lock died with its holder
        assert ledger.last_step == 1


def test_the_second_writer_takes_over_when_the_first_dies(tmp_path: Path) -> None:
    pid, pipe = hold(tmp_path)
    opened: list[Ledger] = []
    waiting = threading.Thread(target=lambda: opened.append(Ledger.open_writer(tmp_path, patience_s=30)))
    waiting.start()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(pipe)
    waiting.join(30)
    assert opened[0].publish(record(2)) == "new"
    opened[0].close()
    assert steps(tmp_path) == [1, 2]


def test_two_writers_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    with Ledger.open_writer(tmp_path), pytest.raises(RunFailed, match=f"process {os.getpid()} "):
        Ledger.open_writer(tmp_path, patience_s=0)
    Ledger.open_writer(tmp_path, patience_s=0).close()


def test_a_writer_that_cannot_open_lets_go_of_the_lock(tmp_path: Path) -> None:
    (tmp_path / "live.jsonl").mkdir()
    with pytest.raises(RunFailed, match="cannot be opened for writing"):
        Ledger.open_writer(tmp_path, patience_s=0)
    (tmp_path / "live.jsonl").rmdir()
    Ledger.open_writer(tmp_path, patience_s=0).close()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A data loader's process that outlives the trainer must not block the resume (case 3.04)."""
    ready, say_ready = os.pipe()
    end, say_end = os.pipe()
    trainer = os.fork()
    if not trainer:
        os.close(say_end)
        Ledger.open_writer(tmp_path, patience_s=0)
        if not os.fork():  # the loader
            os.write(say_ready, b"loading")
            os.read(end, 1)  # until the test ends
        else:
            os.read(ready, 10)
        os._exit(0)
    os.waitpid(trainer, 0)
    try:
        Ledger.open_writer(tmp_path, patience_s=0).close()
    finally:
        for handle in (ready, say_ready, end, say_end):
            os.close(handle)


def test_a_lock_without_a_name_is_somebodys(tmp_path: Path) -> None:
    handle = lock.acquire(tmp_path / ".lock", 0)
    os.ftruncate(handle, 0)
    with pytest.raises(RunFailed, match="written by another process"):
        lock.acquire(tmp_path / ".lock", 0)
    lock.release(handle)


def test_readers_need_no_lock(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    with Ledger.open_writer(tmp_path):
        assert steps(tmp_path) == [1, 2, 3]
