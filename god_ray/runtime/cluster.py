"""Connects this process to Ray: the cluster that it is told of, or one of its own.

In: how many CPUs and GPUs the workers need. Out: a connected process; `embedded` says whose cluster it is.
A cluster that can never hold the workers shows here, in words.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from god_ray.errors import UserError
from god_ray.runtime import numerics
from god_ray.spec import RunSpec


@contextmanager
def connecting(spec: RunSpec) -> Iterator[Callable[[], dict[str, str]]]:
    """Begins to connect at once, in a thread, for it takes seconds; the callable waits until it is done.

    RAY_ADDRESS (set inside Ray jobs) names a cluster; else one is made here, and ended here. The callable
    returns the variables that the workers still need: none in a cluster of our own, which inherits them (a
    runtime environment would keep Ray from using the processes that it has ready).
    """
    with ThreadPoolExecutor(1, "connect") as thread:
        connection = thread.submit(_connect, spec)
        try:
            yield lambda: connection.result().variables
        finally:
            if connection.exception() is None and connection.result().ours:
                import ray

                ray.shutdown()


class _Connection(NamedTuple):
    variables: dict[str, str]
    ours: bool


def _connect(spec: RunSpec) -> _Connection:
    variables = numerics.environment(spec)
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # the worker keeps a log of its own
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        return _Connection(variables, ours=False)
    address = os.environ.get("RAY_ADDRESS")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        ray.init(address=address, **quiet)
        return _Connection(variables, ours=True)
    cores = os.cpu_count() or 1
    needed = math.ceil(spec.workers.max * spec.workers.cpus)
    with _in_environment(variables):
        ray.init(address="local", num_cpus=max(cores, needed + 1), include_dashboard=False, **quiet)
    return _Connection({}, ours=True)


@contextmanager
def _in_environment(variables: dict[str, str]) -> Iterator[None]:
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


def require_room(spec: RunSpec, workers: int) -> None:
    """Refuse what this cluster, as it stands, can never place."""
    import ray

    have = ray.cluster_resources()
    for kind, each in (("CPU", spec.workers.cpus), ("GPU", spec.workers.gpus)):
        if each and have.get(kind, 0) < each * workers:
            raise UserError(
                f"{workers} workers need {each * workers:g} {kind}; the cluster has {have.get(kind, 0):g}.",
                "They could never start.",
                f"set workers to fewer, or workers.{kind.lower()}s to less.",
            )
