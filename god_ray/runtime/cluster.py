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
from god_ray.spec import RunSpec


@contextmanager
def connected(spec: RunSpec) -> Iterator[None]:
    """Ray for the time of a run. RAY_ADDRESS (set inside Ray jobs) names a cluster; else one is made here."""
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        ray.init(address=address, **quiet)
    else:
        cores = os.cpu_count() or 1
        needed = int(spec.workers.max * spec.workers.cpus + 0.999)
        ray.init(address="local", num_cpus=max(cores, needed + 1), include_dashboard=False, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


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
