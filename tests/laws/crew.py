"""Runs without Ray that use real workers: the driver's `fit`, done by a crew of forked processes.

In: a spec and a number of workers. Out: what `god_ray.api.train` and `resume` return; the whole of god_ray is
between, but for Ray. Members live on from run to run, can be killed at any moment, and are then replaced.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

from god_ray import api
from god_ray.api import Result
from god_ray.loop.request import Request
from god_ray.monitor.ledger import Ledger
from god_ray.runtime import inline, numerics
from god_ray.runtime.assignment import Assignment
from god_ray.runtime.run_folder import RunFolder
from god_ray.spec import load
from laws.member import Call, Fault, Job

TESTS = Path(__file__).resolve().parents[1]
DEADLINE_S = 60.0
DEBUG = 0
"""As a number of workers: the whole run in one process, `--debug`."""


class WorkersLost(Exception):
    """What Ray raises when its restarts are used up: the workers' errors by rank."""

    def __init__(self, failures: dict[int, BaseException]) -> None:
        super().__init__(f"workers failed: {failures}")
        self.worker_failures = failures


@dataclass
class Member:
    pid: int
    pipe: Connection

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@dataclass
class Watch:
    """Told of every committed step: (rank, step, members by rank)."""

    on_step: Callable[[int, int, list[Member]], None]


@dataclass
class Attempts:
    """What happened under one driver: of each group that was formed, the workers' facts, or their errors."""

    facts: list[list[dict[str, Any]]] = field(default_factory=list)
    errors: list[dict[int, BaseException]] = field(default_factory=list)


def has_avx2() -> bool:
    try:
        return " avx2 " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


class Nursery:
    """A process that has loaded torch in one environment, and forks members."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        env = {**os.environ, **environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": _python_path()}
        command = [sys.executable, "-m", "laws.member", str(theirs.fileno())]
        self.process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()])
        theirs.close()
        self.control = ours

    def member(self) -> Member:
        ours, theirs = socket.socketpair()
        socket.send_fds(self.control, [b"m"], [theirs.fileno()])
        theirs.close()
        pid = int.from_bytes(self.control.recv(4, socket.MSG_WAITALL), "big")
        assert pid, "the nursery has died"
        return Member(pid, Connection(ours.detach()))

    def close(self) -> None:
        self.control.close()
        self.process.wait(30)


def _python_path() -> str:
    parts = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(part for part in parts if part)


class Crew:
    """`isa`: what members compute with: "avx2" where there is AVX2, so that golden digests can be had."""

    def __init__(self) -> None:
        self.isa = "avx2" if has_avx2() else None
        self._nurseries: dict[str, Nursery] = {}
        self._members: dict[tuple[int, str], Member] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="crew-")
        self._numbers = count()
        self._nursery("usual")

    def close(self) -> None:
        for member in self._members.values():
            member.pipe.close()
        for nursery in self._nurseries.values():
            nursery.close()
        self._folder.cleanup()

    # ---- what tests call

    def train(
        self, spec: str | Mapping[str, Any], workers: int, overrides: Sequence[str] = (), **how: Any
    ) -> tuple[Result, Attempts]:
        """A new run. `how`: see `_fitting`. workers=DEBUG: in one process."""
        with self._fitting(workers, **how) as attempts:
            return api.train(spec, debug=True, overrides=tuple(overrides)), attempts

    def resume(self, result: Result, workers: int, **how: Any) -> tuple[Result, Attempts]:
        """Go on with that run."""
        with self._fitting(workers, **how) as attempts:
            return api.resume(result.name, result.folder.parent, debug=True), attempts

    def call(self, module: str, function: str, *args: Any) -> Any:
        """Run a test module's function in a member: same instruction set, one thread."""
        member = self._get(0, "usual")
        member.pipe.send(Call(module, function, args))
        try:
            kind, value = member.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._forget([member], [0])
            raise ConnectionError(f"{function} died") from None
        if kind == "raised":
            raise value
        return value

    def renew(self) -> None:
        """The next run gets processes that have done nothing yet."""
        for member in self._members.values():
            member.pipe.close()
        self._members.clear()

    # ---- the driver's `fit`

    @contextmanager
    def _fitting(
        self,
        workers: int,
        restarts: int = 0,
        faults: Sequence[Fault] = (),
        asks: Sequence[tuple[int, Request]] = (),
        environ: Mapping[int, Mapping[str, str]] | None = None,
        kinds: Mapping[int, str] | None = None,
        watch: Watch | None = None,
        same_states: bool = True,
    ) -> Iterator[Attempts]:
        """Ray's part is ours. `restarts`: how often a group that lost a worker is formed again. By rank:
        `environ`; `kinds`: what its process was started in, "usual" or "plain" (no vector extensions).
        """
        attempts = Attempts()
        sizes = [workers]

        def fit(assignment: Assignment, folder: RunFolder, size: int, _ended: object) -> dict[str, Any]:
            size = sizes.pop() if sizes else size
            for left in range(restarts, -1, -1):
                jobs = [
                    Job(
                        assignment,
                        folder,
                        rank,
                        size,
                        f"{self._folder.name}/{next(self._numbers)}",
                        size == DEBUG,
                        tuple(faults),
                        dict((environ or {}).get(rank, {})),
                        tuple(asks),
                        watch is not None,
                    )
                    for rank in range(max(size, 1))
                ]
                meeting = jobs[0].meeting
                jobs = [Job(**{**vars(job), "meeting": meeting}) for job in jobs]
                try:
                    ends = self._together(jobs, kinds or {}, watch, attempts)
                    if same_states and "outcome" in ends[0]:
                        states = {(e["outcome"]["step"], e["outcome"]["digest"]) for e in ends}
                        assert len(states) == 1, f"workers ended in different states: {states}"
                    return ends[0]
                except WorkersLost as lost:
                    if not left:
                        raise
                    attempts.errors.append(lost.worker_failures)
            raise AssertionError("unreachable")

        with mock.patch.object(inline, "fit", fit):
            yield attempts

    def _together(
        self, jobs: list[Job], kinds: Mapping[int, str], watch: Watch | None, attempts: Attempts
    ) -> list[dict[str, Any]]:
        members = [self._get(job.rank, kinds.get(job.rank, "usual")) for job in jobs]
        for member, job in zip(members, jobs):
            member.pipe.send(job)
        done: dict[int, dict[str, Any]] = {}
        failed: dict[int, BaseException] = {}
        while len(done) + len(failed) < len(jobs):
            waiting = {m.pipe: r for r, m in enumerate(members) if r not in done and r not in failed}
            ready = wait(list(waiting), DEADLINE_S)
            if not ready:
                for rank in waiting.values():
                    members[rank].kill()
                    failed[rank] = TimeoutError(f"worker {rank} was stuck for {DEADLINE_S:.0f} s")
            for pipe in ready:
                rank = waiting[pipe]
                try:
                    kind, value = pipe.recv()
                except (EOFError, ConnectionResetError):
                    failed[rank] = ConnectionError(f"worker {rank} died")
                    continue
                if kind == "step":
                    assert watch is not None
                    watch.on_step(rank, value, members)
                elif kind == "raised":
                    failed[rank] = value
                else:
                    done[rank] = value
        attempts.facts.append([done[rank].pop("facts") for rank in sorted(done)])
        if failed:
            self._forget(
                members, [r for r, e in failed.items() if isinstance(e, ConnectionError | TimeoutError)]
            )
            raise WorkersLost(failed)
        ends = [done[rank] for rank in range(len(jobs))]
        assert len({tuple(end) for end in ends}) == 1, f"workers ended differently: {ends}"
        return ends

    # ---- processes

    def _nursery(self, kind: str) -> Nursery:
        if kind not in self._nurseries:
            spec = load({"recipe": "r.py", "data": {"train": "d"}, "batch_size": 8, "steps": 1}).spec
            environ = numerics.environment(spec)
            if kind == "plain":
                environ |= {"ATEN_CPU_CAPABILITY": "default"}
            elif self.isa:
                isa = spec.determinism.model_copy(update={"isa": self.isa})
                environ = numerics.environment(spec.model_copy(update={"determinism": isa}))
            self._nurseries[kind] = Nursery(environ)
        return self._nurseries[kind]

    def _get(self, rank: int, kind: str) -> Member:
        if (rank, kind) not in self._members:
            self._members[rank, kind] = self._nursery(kind).member()
        return self._members[rank, kind]

    def _forget(self, members: list[Member], ranks: list[int]) -> None:
        dead = {members[rank].pid for rank in ranks}
        for key, member in list(self._members.items()):
            if member.pid in dead:
                member.pipe.close()
                del self._members[key]


# Facts about how a step was done, which may differ where its result does not.
CIRCUMSTANCES = {"timings", "generation", "num_workers", "at"}


def happened(result: Result) -> list[dict[str, Any]]:
    """The ledger without circumstances: what law 2 is about."""
    return [{k: v for k, v in record.items() if k not in CIRCUMSTANCES} for record in ledger(result)]


def kill_when(step: int, ranks: Sequence[int]) -> Watch:
    """SIGKILL from outside, once anybody says that `step` is committed: wherever the others are by then."""
    told: list[int] = []

    def on_step(_rank: int, committed: int, members: list[Member]) -> None:
        if committed == step and not told:
            told.append(step)
            for rank in ranks:
                members[rank].kill()

    return Watch(on_step)


def ledger(result: Result) -> list[dict[str, Any]]:
    """The run's records; reading raises on a gap, a repeat or a torn line."""
    return list(Ledger.read(result.folder / "ledger"))
