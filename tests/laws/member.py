"""One process of the crew: a nursery that has loaded torch once, and the members that it forks.

In: over a socket, jobs (pickled). Out: replies. A member runs `god_ray.runtime.worker` as it is, in a gloo
group; only Ray's report is replaced, by a barrier. Nothing here outlives the socket's other end.
"""

from __future__ import annotations

import array
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from god_ray.loop.request import Request
    from god_ray.runtime.assignment import Assignment
    from god_ray.runtime.run_folder import RunFolder


@dataclass(frozen=True)
class Fault:
    """SIGKILL to oneself: worker `rank`, in the step that would be number `step` (from 1), at `place`.

    leaf: after a leaf. exchanged: gradients have been exchanged, the optimizer has not stepped. committed: it
    has, nobody has been told. evaluating: in the evaluation after it. saving: its checkpoint is written.
    generation: of the run.
    """

    rank: int
    step: int
    place: str = "leaf"
    generation: int = 1


@dataclass(frozen=True)
class Job:
    """One worker's part in an attempt.

    asks: commands that come when worker 0 has committed that step; they are obeyed after the next one.
    follow: say each committed step, so that the parent can kill at one.
    """

    assignment: Assignment
    folder: RunFolder
    rank: int
    size: int
    meeting: str
    debug: bool = False
    faults: tuple[Fault, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    asks: tuple[tuple[int, Request], ...] = ()
    follow: bool = False
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Call:
    """A function of a test module, run in a member for its instruction set and threads."""

    module: str
    function: str
    args: tuple[Any, ...]


# ---- a member


def serve(pipe: Connection) -> None:
    """Jobs until the parent goes."""
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("done", _call(job) if isinstance(job, Call) else _work(job, pipe))
        except BaseException as error:  # noqa: BLE001 - it is the parent's to judge
            answer = ("raised", _sendable(error))
            _forget(error)
            del error
            gc.collect()
        _leave_group()
        pipe.send(answer)


def _call(call: Call) -> Any:
    return getattr(importlib.import_module(call.module), call.function)(*call.args)


def _work(job: Job, pipe: Connection) -> dict[str, Any]:
    import torch

    from god_ray.runtime import inline

    torch.use_deterministic_algorithms(False)
    facts: dict[str, Any] = {}
    tell: Callable[[int], None] = (lambda step: pipe.send(("step", step))) if job.follow else (lambda _: None)
    with mock.patch.dict(os.environ, job.environ), _watching(job, facts, tell):
        if job.debug:
            return {"outcome": inline.run(job.assignment, job.folder), "facts": facts}
        return _join(job) | {"facts": facts}


def _join(job: Job) -> dict[str, Any]:
    """`worker.train`, in a group that Ray has not formed."""
    import torch
    import torch.distributed as dist

    from god_ray.runtime import worker

    store = dist.FileStore(job.meeting, job.size)
    dist.init_process_group(
        "gloo", store=store, rank=job.rank, world_size=job.size, timeout=timedelta(seconds=job.timeout_s)
    )
    with mock.patch.object(worker.ray.train.torch, "get_device", return_value=torch.device("cpu")):
        return worker.train({"assignment": job.assignment})


@contextmanager
def _watching(job: Job, facts: dict[str, Any], tell: Callable[[int], None]) -> Any:
    """Faults put in, facts taken out."""
    from god_ray.checkpoint.state import digest
    from god_ray.runtime import control, inline, numerics, worker

    asks = dict(job.asks) if job.rank == 0 else {}

    def said(step: int) -> None:
        if step in asks:
            control.send(job.folder.control, asks[step])
        tell(step)

    def assemble(module_assemble: Callable[..., Any]) -> Callable[..., Any]:
        def assembled(local: Any, group: Any, ports: Any, found: Any, generation: int) -> Any:
            start = digest(local.recipe.model, local.recipe.optimizer)
            loop = module_assemble(local, group, ports, found, generation)
            facts.update(
                digest=start,
                pid=os.getpid(),
                exchange=type(loop.step.exchange).__name__,
                sliced=getattr(loop.step.exchange, "sliced", False),
                resumed_at=0 if found is None else found.step,
                skipped=[] if found is None else found.skipped,
                counters=loop.step.feed.counters,
            )
            _arm(loop, [f for f in job.faults if (f.rank, f.generation) == (job.rank, generation)], said)
            return loop

        return assembled

    with ExitStack() as stack:
        for module in (inline, worker):
            stack.enter_context(mock.patch.object(module, "assemble", assemble(module.assemble)))
        stack.enter_context(mock.patch.object(worker, "RayReporter", partial(_Barrier, job.folder)))
        if threads := os.environ.get("PINNED_THREADS"):
            stack.enter_context(mock.patch.object(numerics, "num_threads", return_value=int(threads)))
        yield


class _Barrier:
    """In place of Ray's report: all workers are there at the same step, and the leader has the checkpoint."""

    def __init__(self, folder: Any, leader: bool) -> None:
        self.folder, self.leader = folder, leader

    def report(self, step: int, metrics: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        seen = torch.tensor([step])
        dist.all_reduce(seen)
        assert seen.item() == step * dist.get_world_size(), "workers reported different steps"
        manifest = self.folder.checkpoints / f"step-{step:08d}" / "manifest.json"
        assert not self.leader or manifest.exists()


def _arm(loop: Any, faults: list[Fault], tell: Callable[[int], None]) -> None:
    """Put the faults into a loop, and its committed steps into `tell`."""
    at = {(fault.place, fault.step) for fault in faults}
    assert {place for place, _ in at} <= {"leaf", "exchanged", "committed", "evaluating", "saving"}, at
    step = loop.step
    run_leaf, run_exchange, run_step = step.runner.run, step.exchange.run, step.run

    def leaf(cursor: Any, *args: Any, **options: Any) -> Any:
        result = run_leaf(cursor, *args, **options)
        _die_if(("leaf", cursor.step + 1) in at)
        return result

    def exchange(*args: Any) -> Any:
        result = run_exchange(*args)
        _die_if(("exchanged", step.cursor.step + 1) in at)
        return result

    def whole(cursor: Any, *args: Any) -> Any:
        result = run_step(cursor, *args)
        _die_if(("committed", cursor.step + 1) in at)
        tell(cursor.step + 1)
        return result

    step.runner.run, step.exchange.run, step.run = leaf, exchange, whole
    if loop.evaluation is not None:
        evaluate = loop.evaluation.run

        def evaluating(*args: Any) -> Any:
            result = evaluate(*args)
            _die_if(("evaluating", step.cursor.step + 1) in at)
            return result

        loop.evaluation.run = evaluating
    if not hasattr(loop.checkpoints, "store"):
        return
    store = loop.checkpoints.store.store
    write = store.write

    def writing(name: str, fill: Any) -> None:
        _die_if(any(place == "saving" and name == f"step-{s:08d}/manifest.json" for place, s in at))
        write(name, fill)

    store.write = writing


def _die_if(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def _sendable(error: BaseException) -> BaseException:
    from god_ray.errors import GodRayError

    if isinstance(error, GodRayError):
        return error
    return RuntimeError("".join(traceback.format_exception(error)))


def _forget(error: BaseException | None) -> None:
    """Frames of an error and of its causes would keep the sockets of the group open, and peers waiting."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        cause, error.__cause__ = error.__cause__, None
        context, error.__context__ = error.__context__, None
        error = cause or context


def _leave_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def drive(spec: dict[str, Any], faults: Sequence[Fault]) -> None:
    """A whole `god-ray train --debug`, driver and all, in this member: to be killed."""
    from god_ray import api
    from god_ray.runtime import inline

    def fit(assignment: Any, folder: Any, _workers: int, _ended: Any) -> dict[str, Any]:
        job = Job(assignment, folder, 0, 1, "", True, tuple(faults))
        with _watching(job, {}, lambda _: None):
            return {"outcome": inline.run(assignment, folder)}

    with mock.patch.object(inline, "fit", fit):
        api.train(spec, debug=True)


# ---- the nursery


def nursery(control: socket.socket) -> None:
    """Fork a member for each socket that arrives; answer with its process id."""
    import ray.train.torch  # noqa: F401 - what members must not load again
    import torch._dynamo  # noqa: F401 - the first optimizer needs it

    import god_ray.runtime.inline
    import god_ray.runtime.worker  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()  # what is loaded now need not be looked through after every run
    while True:
        data, ancillary, _, _ = control.recvmsg(1, socket.CMSG_SPACE(4))
        if not data:
            return
        handle = array.array("i", ancillary[0][2])[0]
        pid = os.fork()
        if pid == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(Connection(handle))
            os._exit(0)
        os.close(handle)
        control.sendall(pid.to_bytes(4, "big"))


if __name__ == "__main__":
    sys.modules["laws.member"] = sys.modules["__main__"]  # jobs are pickled under that name
    nursery(socket.socket(fileno=int(sys.argv[1])))
