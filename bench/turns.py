"""Contenders that take turns: long-lived groups of processes, each of which trains only when told to.

In: a function that trains, calling `gate.wait()` before each step. Out: seconds per turn. Whatever else
the machine does hits all contenders alike, because turns are short and interleaved. Must not know what a
contender trains with.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import Any

PATIENCE_S = 300
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@dataclass(frozen=True)
class Turn:
    """How long it took, and the processor time of all its processes."""

    wall_s: float
    cpu_s: float


class Gate:
    """A contender's side. A turn is timed here, from its first step's permission to its last step's end."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._left = 0
        self._began: tuple[float, float] | None = None

    def wait(self) -> bool:
        """Call before each step: blocks until it is this contender's turn. False: no more turns."""
        if self._left == 0 and not self._next_turn():
            return False
        self._left -= 1
        return True

    def _next_turn(self) -> bool:
        if self._began is None:
            self._line.send(None)
        else:
            self._line.send(Turn(perf_counter() - self._began[0], process_time() - self._began[1]))
        self._left = self._line.recv()
        self._began = perf_counter(), process_time()
        return self._left > 0


Train = Callable[[Gate, int, int, Mapping[str, Any]], None]
"""(gate, rank, size, job): trains until the gate says no, in a process group of `size`."""


def _worker(train: Train, rank: int, size: int, port: int, job: Mapping[str, Any], line: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    train(Gate(line), rank, size, job)
    dist.destroy_process_group()


class Team:
    """The driver's side of one contender: `size` processes."""

    def __init__(self, name: str, train: Train, size: int, job: Mapping[str, Any]) -> None:
        self.name, self.size = name, size
        os.environ.update(THREADS)
        context = multiprocessing.get_context("spawn")
        port = _free_port()
        self._lines: list[Connection] = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_worker, args=(train, rank, size, port, job, there), daemon=True)
            process.start()
            there.close()
            self._lines.append(here)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def ready(self) -> bool:
        """Returns when every process waits for its first turn; False, aloud, when one failed before that."""
        try:
            self._answers()
        except EOFError:
            print(f"{self.name}: left out, it does not start (its traceback is above)", file=sys.stderr)
            self.close()
            return False
        return True

    def turn(self, num_steps: int) -> Turn:
        for line in self._lines:
            line.send(num_steps)
        turns = self._answers()
        return Turn(max(t.wall_s for t in turns), sum(t.cpu_s for t in turns))

    def close(self) -> None:
        """The last permission: none. A process that has failed, or does not end by itself, is ended."""
        for line in self._lines:
            with suppress(BrokenPipeError):
                line.send(0)
        for process in self._processes:
            process.join(30)
            process.kill()

    def _answers(self) -> list[Any]:
        answers = []
        for line in self._lines:
            if not line.poll(PATIENCE_S):
                raise TimeoutError(f"{self.name}: no answer in {PATIENCE_S} s")
            answers.append(line.recv())
        return answers


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
