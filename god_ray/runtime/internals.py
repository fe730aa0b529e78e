"""Everything of god_ray that touches Ray's internal modules: Ray 2.60, guarded by tests/contract/test_ray.py.

`Trainer` is a `TorchTrainer` whose controller runs in this process: an actor of its own would cost a process
start and an import of torch before the first worker can start. What Ray would start beside it, and god_ray
does not use, is left out. With another Ray, `Trainer` is the plain `TorchTrainer`. Must not know runs or specs.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import ray
from ray.train.torch import TorchTrainer

from god_ray.errors import RunFailed

# Ray Train's snapshot of its list of checkpoints, in the experiment folder.
CHECKPOINT_LIST = "checkpoint_manager_snapshot.json"
POLL_EVERY_S = 0.5


def make_trainer(fixed: bool, ended: threading.Event, **arguments: Any) -> TorchTrainer:
    """A trainer as `TorchTrainer(**arguments)`.

    `fixed`: no autoscaler needs to be asked for nodes. `ended`: when set, the workers are killed within a
    second, and `fit` raises RunFailed.
    """
    if not ray.__version__.startswith("2.60."):
        return TorchTrainer(**arguments)
    return _near_trainer(fixed, ended, arguments)


def _near_trainer(fixed: bool, ended: threading.Event, arguments: dict[str, Any]) -> TorchTrainer:
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2._internal.execution.controller.controller import TrainController
    from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
    from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

    # Feeds are god_ray's own; what a dead driver has placed goes with its job.
    unused = (DatasetsCallback, PlacementGroupCleanerCallback)

    class Workers(WorkerGroup):
        """Nobody calls the controller from a worker: `get_all_reported_checkpoints` is not used."""

        def _init_train_context_on_workers(self, workers: Any, sync_actor: Any, given: Any) -> None:
            ray.get(
                [
                    worker.actor.init_train_context.remote(
                        train_run_context=self._train_run_context,
                        distributed_context=worker.distributed_context,
                        synchronization_actor=sync_actor,
                        storage_context=self._storage_context,
                        worker_callbacks=self._worker_callbacks_to_propagate,
                        controller_actor=None,
                        **{name: values[i] for name, values in given.items()},
                    )
                    for i, worker in enumerate(workers)
                ]
            )
            self._decorate_worker_log_file_paths(workers)

    class Unasked(FixedScalingPolicy):
        """Asks no autoscaler, and so needs no actor that does."""

        def after_controller_start(self, train_run_context: Any) -> None:
            return None

        def _maybe_send_resource_request(self) -> None:
            return None

    class Controller(TrainController):
        worker_group_cls = Workers

        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self._health_check_interval_s = POLL_EVERY_S

        async def _run_control_loop_iteration(self) -> None:
            if ended.is_set():
                if self._worker_group is not None and self._worker_group.has_started():
                    self._worker_group.abort()
                raise RunFailed("the run was ended at once.")
            await super()._run_control_loop_iteration()

    class Trainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            return [c for c in super()._create_default_callbacks() if not isinstance(c, unused)]

        def _initialize_and_run_controller(self, **given: Any) -> Any:
            if fixed:
                given["scaling_policy"] = Unasked(self.scaling_config)
            controller = Controller(**given)
            asyncio.run(controller.run())
            return controller.get_result()

    return Trainer(**arguments)
