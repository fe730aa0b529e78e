"""Everything of god_ray that builds on Ray's internal modules.

Made for Ray 2.60; tests/contract/test_ray.py fails first when Ray changes. `Trainer` is a `TorchTrainer`
whose controller runs in this process: an actor of its own would cost the start of a process and an import of
torch before the first worker can start. What Ray would start beside it, and god_ray does not use, is left
out. Must not know runs or specs.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import ray
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

from god_ray.errors import RunFailed
from god_ray.runtime.retries import Retries

MADE_FOR = "2.60."
POLL_EVERY_S = 0.5
# Feeds are god_ray's own; what a dead driver has placed goes with its job.
_UNUSED = (DatasetsCallback, PlacementGroupCleanerCallback)


class Trainer(TorchTrainer):  # type: ignore[misc]
    """As `TorchTrainer(**arguments)`.

    `fixed`: no autoscaler needs to be asked for nodes. `ended`: when set, the workers are killed as soon as
    they have been placed, and `fit` raises RunFailed. `retries` is asked whether to start workers again.
    """

    def __init__(self, fixed: bool, ended: threading.Event, retries: Retries, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._fixed, self._ended, self._retries = fixed, ended, retries

    def _create_default_callbacks(self) -> list[Any]:
        return [c for c in super()._create_default_callbacks() if not isinstance(c, _UNUSED)]

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        given["failure_policy"] = _Judged(self.run_config.failure_config, self._retries)
        if self._fixed:
            given["scaling_policy"] = _Unasked(self.scaling_config)
        controller = _Controller(self._ended, **given)
        asyncio.run(controller.run())
        return controller.get_result()


class _Workers(WorkerGroup):  # type: ignore[misc]
    def _init_train_context_on_workers(
        self, workers: list[Any], sync_actor: Any, train_context_args: dict[str, list[Any]]
    ) -> None:
        """As Ray's, but that there is no controller's actor, which a worker could ask for checkpoints."""
        started = [
            worker.actor.init_train_context.remote(
                train_run_context=self._train_run_context,
                distributed_context=worker.distributed_context,
                synchronization_actor=sync_actor,
                storage_context=self._storage_context,
                worker_callbacks=self._worker_callbacks_to_propagate,
                controller_actor=None,
                **{name: values[i] for name, values in train_context_args.items()},
            )
            for i, worker in enumerate(workers)
        ]
        ray.get(started)
        self._decorate_worker_log_file_paths(workers)


class _Unasked(FixedScalingPolicy):  # type: ignore[misc]
    """Asks no autoscaler, and so needs no actor that does."""

    def after_controller_start(self, train_run_context: Any) -> None:
        return None

    def _maybe_send_resource_request(self) -> None:
        return None


class _Judged(FailurePolicy):  # type: ignore[misc]
    def __init__(self, failure_config: Any, retries: Retries) -> None:
        super().__init__(failure_config)
        self._retries = retries

    def make_decision(self, training_failed_error: Any) -> FailureDecision:
        cause = getattr(training_failed_error, "controller_failure", None)
        if isinstance(cause, WorkerGroupStartupTimeoutError):
            self._retries.wait()
            return FailureDecision.RETRY
        if cause is not None and not isinstance(cause, WorkerGroupStartupFailedError):
            return FailureDecision.RAISE
        again = self._retries.again(training_failed_error)
        return FailureDecision.RETRY if again else FailureDecision.RAISE


class _Controller(TrainController):  # type: ignore[misc]
    worker_group_cls = _Workers

    def __init__(self, ended: threading.Event, **given: Any) -> None:
        super().__init__(**given)
        self._ended, self._health_check_interval_s = ended, POLL_EVERY_S

    async def _run_control_loop_iteration(self) -> None:
        if self._ended.is_set():
            if self._worker_group is not None and self._worker_group.has_started():
                self._worker_group.abort()
            raise RunFailed("the run was ended at once.")
        await super()._run_control_loop_iteration()
