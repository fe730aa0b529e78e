"""Connects this process to Ray: the cluster that it is told of, or one of its own.

In: how many CPUs and GPUs the workers need. Out: a connected process; `embedded` says whose cluster it is.
A cluster that can never hold the workers shows here, in words.
"""

from __future__ import annotations

import getpass
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from god_ray.errors import NoRoom, UserError
from god_ray.runtime import numerics
from god_ray.spec import RunSpec


@contextmanager
def connecting(spec: RunSpec) -> Iterator[Callable[[], Connection]]:
    """Begins to connect at once, in a thread, for it takes seconds; the callable waits until it is done.

    RAY_ADDRESS (set inside Ray jobs) names a cluster; else one is made here, and ended here. Its processes
    inherit the workers' variables, and it is large enough for as many workers as the run may ever have.
    """
    _require_gpus(spec)
    future: Future[Connection] = Future()
    over = threading.Event()

    def connect() -> None:
        try:
            future.set_result(_connect(spec))
        except BaseException as error:  # noqa: BLE001 - raised where the connection is waited for
            future.set_exception(error)
        over.wait()  # Linux ends Ray's processes with the thread that has started them

    # A daemon: a cluster that does not answer must not hold a run that was asked to stop.
    threading.Thread(target=connect, name="connect", daemon=True).start()
    try:
        yield future.result
    finally:
        if future.done() and future.exception() is None and future.result().ours:
            import ray

            with _undisturbed():
                ray.shutdown()
        over.set()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without Ctrl-C: what follows a run's end takes a second, and is not to be left half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _require_gpus(spec: RunSpec) -> None:
    """Before anything is made, where the cluster will be this machine."""
    if not spec.workers.gpus or os.environ.get("RAY_ADDRESS") or _connected():
        return
    import torch

    if not torch.cuda.is_available():
        raise NoRoom(
            f"workers.gpus is {spec.workers.gpus:g}, and this machine has no GPU.",
            "RAY_ADDRESS is not set, so the workers would start here.",
            "leave workers.gpus out, or set RAY_ADDRESS to a cluster that has GPUs.",
        )


def _connected() -> bool:
    """Whether the caller has a Ray already; without importing it."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


class Connection(NamedTuple):
    """`variables`: what the workers do not inherit. `fixed`: no node will ever be added."""

    variables: dict[str, str]
    ours: bool
    fixed: bool


def _connect(spec: RunSpec) -> Connection:
    variables = numerics.environment(spec)
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # it only warns in a log
    os.environ.setdefault("RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING", "0")  # the run keeps its log
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # the worker keeps a log of its own
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "10")  # then it is said
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        return Connection(variables, ours=False, fixed=False)
    address = os.environ.get("RAY_ADDRESS")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"there is no Ray cluster to connect to at {address}.",
                f"{type(error).__name__}: {error}",
                "correct RAY_ADDRESS, or unset it for a Ray of the run's own.",
            ) from error
        return Connection(variables, ours=True, fixed=False)
    cores = os.cpu_count() or 1
    needed = math.ceil(spec.lanes * spec.workers.cpus)
    # Workers have an environment of their own, so processes that Ray starts ahead only take their CPU time.
    with in_environment({**variables, "RAY_prestart_worker_first_driver": "0"}):
        ray.init(address="local", num_cpus=max(cores, needed + 1), include_dashboard=False, **quiet)
    _close_to_others(Path.home() / ".ray" / "auth_token")
    return Connection({}, ours=True, fixed=True)


def _close_to_others(token: Path) -> None:
    """Ray 2.60 writes its token readable by everybody."""
    if token.exists() and token.owner() == getpass.getuser():
        token.chmod(0o600)


@contextmanager
def in_environment(variables: dict[str, str]) -> Iterator[None]:
    """These variables for the time of a block; afterwards what was there before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def missing_room(spec: RunSpec, workers: int) -> str:
    """What the workers have to wait for, in words; "" if the cluster has room for them now."""
    import ray

    free, have = ray.available_resources(), ray.cluster_resources()
    return "; ".join(
        f"{workers} workers need {each * workers:g} {kind}, {free.get(kind, 0):g} of the cluster's "
        f"{have.get(kind, 0):g} are free"
        for kind, each in (("CPU", spec.workers.cpus), ("GPU", spec.workers.gpus))
        if free.get(kind, 0) < each * workers
    )


def require_room(spec: RunSpec, workers: int, grows: bool = False) -> None:
    """Refuse what the cluster can never place. `grows`: what it has none of, it may get yet."""
    import ray

    have = ray.cluster_resources()
    for kind, each in (("CPU", spec.workers.cpus), ("GPU", spec.workers.gpus)):
        if each and have.get(kind, 0) < each * workers and (have.get(kind) or not grows):
            raise NoRoom(
                f"{workers} workers need {each * workers:g} {kind}; the cluster has {have.get(kind, 0):g}.",
                "They could never start.",
                f"set workers to fewer, or workers.{kind.lower()}s to less.",
            )
