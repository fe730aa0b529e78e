"""Connects this process to Ray: the cluster that it is told of, or one of its own.

In: how many CPUs and GPUs the workers need. Out: a connected process; `embedded` says whose cluster it is.
A cluster that can never hold the workers shows here, in words.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from god_ray.errors import UserError
from god_ray.runtime import numerics
from god_ray.spec import RunSpec


@contextmanager
def connected(spec: RunSpec) -> Iterator[dict[str, str]]:
    """Ray for the time of a run. RAY_ADDRESS (set inside Ray jobs) names a cluster; else one is made here.

    Yields the variables that the workers still need: none in a cluster of our own, which inherits them (a
    runtime environment would keep Ray from using the processes that it has ready).
    """
    variables = numerics.environment(spec)
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield variables
        return
    address = os.environ.get("RAY_ADDRESS")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        ray.init(address=address, **quiet)
    else:
        cores = os.cpu_count() or 1
        needed = int(spec.workers.max * spec.workers.cpus + 0.999)
        with _in_environment(variables):
            ray.init(address="local", num_cpus=max(cores, needed + 1), include_dashboard=False, **quiet)
    try:
        yield variables if address else {}
    finally:
        ray.shutdown()


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
