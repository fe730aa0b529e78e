"""One attempt of a run as a Ray `TorchTrainer`.

In: an assignment, its folder, a number of workers. Out: the leader's outcome and the
`ray.train.Checkpoint`. Ray's own restart from checkpoints is what recovers a dead worker. Must not decide
what comes next.
"""

from __future__ import annotations

from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from god_ray.runtime.assignment import Assignment
from god_ray.runtime.cluster import Connection, require_room
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.worker import train

GROUP_TIMEOUT_S = 600
# The one name of Ray's own that god_ray relies on; tests/contract/test_ray.py fails first when it changes.
RAY_CHECKPOINT_LIST = "checkpoint_manager_snapshot.json"


def fit(
    connection: Connection, assignment: Assignment, folder: RunFolder, workers: int
) -> tuple[dict[str, Any], Any]:
    """Run one attempt to its end. Raises what Ray raises when its own restarts are used up."""
    spec = assignment.spec
    if connection.fixed:
        require_room(spec, workers)
    # The run folder is Ray's experiment folder too, since Ray takes only checkpoints inside it. Ray's list of
    # checkpoints is made anew in each attempt: the store decides what is kept, and what is intact.
    (folder.path / RAY_CHECKPOINT_LIST).unlink(missing_ok=True)
    gpu = spec.workers.gpus > 0
    resources = {"CPU": spec.workers.cpus} | ({"GPU": spec.workers.gpus} if gpu else {})
    trainer = TorchTrainer(
        train,
        train_loop_config={"assignment": assignment},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu, resources_per_worker=resources),
        torch_config=TorchConfig(backend="nccl" if gpu else "gloo", timeout_s=GROUP_TIMEOUT_S),
        run_config=RunConfig(
            name=folder.name,
            storage_path=str(folder.path.parent),
            failure_config=FailureConfig(max_failures=spec.failures.max),
            checkpoint_config=CheckpointConfig(num_to_keep=None),
            worker_runtime_env={"env_vars": connection.variables} if connection.variables else None,
        ),
    )
    result = trainer.fit()
    returned: Any = result.return_value
    return dict(returned), result.checkpoint
