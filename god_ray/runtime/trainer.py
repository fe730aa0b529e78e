"""One attempt of a run as a Ray `TorchTrainer`.

In: an assignment, its folder, a number of workers. Out: the leader's outcome. Ray's own restart from
checkpoints is what recovers a dead worker. Must not decide what comes next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig

from god_ray.runtime import internals
from god_ray.runtime.assignment import Assignment
from god_ray.runtime.cluster import Connection, missing_room, require_room
from god_ray.runtime.retries import Retries
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.worker import train

GROUP_TIMEOUT_S = 600
RAY_CHECKPOINT_LIST = "checkpoint_manager_snapshot.json"


def fit(
    connection: Connection, assignment: Assignment, folder: RunFolder, workers: int, ended: threading.Event
) -> dict[str, Any]:
    """Run one attempt to its end. Raises what Ray raises when its own restarts are used up."""
    spec = assignment.spec
    if connection.fixed:
        require_room(spec, workers)
    if missing := missing_room(spec, workers):
        folder.move("WAITING", missing)
    # The run folder is Ray's experiment folder too, since Ray takes only checkpoints inside it. Ray's list of
    # checkpoints is made anew in each attempt: the store decides what is kept, and what is intact.
    folder.store.remove(RAY_CHECKPOINT_LIST)
    filesystem, path = folder.filesystem()
    gpu = spec.workers.gpus > 0
    resources = {"CPU": spec.workers.cpus} | ({"GPU": spec.workers.gpus} if gpu else {})
    retries = Retries(folder, spec.failures.max, lambda: missing_room(spec, workers))
    trainer = internals.Trainer(
        connection.fixed,
        ended,
        retries,
        train_loop_per_worker=train,
        train_loop_config={"assignment": assignment},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu, resources_per_worker=resources),
        torch_config=TorchConfig(backend="nccl" if gpu else "gloo", timeout_s=GROUP_TIMEOUT_S),
        run_config=RunConfig(
            name=folder.name,
            storage_path=path.rpartition("/")[0],
            storage_filesystem=filesystem,
            failure_config=FailureConfig(max_failures=-1),  # `retries` is asked
            checkpoint_config=CheckpointConfig(num_to_keep=None),
            worker_runtime_env={"env_vars": connection.variables} if connection.variables else None,
        ),
    )
    try:
        with _written_down(folder):
            result = trainer.fit()
    except Exception as error:
        if retries.failure is None:
            raise
        raise retries.failure from error
    returned: Any = result.return_value
    return dict(returned)


@contextmanager
def _written_down(folder: RunFolder) -> Iterator[None]:
    """What Ray Train's controller has to say goes to the run's logs, as the workers' words do."""
    logs = folder.path / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    logger, handler = logging.getLogger("ray.train"), logging.FileHandler(logs / "controller.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.propagate = before[1]
        logger.removeHandler(handler)
        handler.close()
