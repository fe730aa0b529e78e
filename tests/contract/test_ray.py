"""What god_ray relies on in Ray beyond its documentation: fails first when Ray changes."""

from __future__ import annotations

import dataclasses
import inspect

import ray
import ray.train
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.streaming_executor import StreamingExecutor
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.constants import (
    CHECKPOINT_MANAGER_SNAPSHOT_FILENAME,
    WORKER_GROUP_START_TIMEOUT_S_ENV_VAR,
)
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.context import TrainContext
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.failure_handling.default import DefaultFailurePolicy
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.exceptions import ControllerError

from god_ray.cli.options import RAYS_ERROR_THREAD
from god_ray.runtime.internals import MADE_FOR
from god_ray.runtime.trainer import RAY_CHECKPOINT_LIST


def test_the_pinned_ray_is_the_one_that_was_measured() -> None:
    assert ray.__version__.startswith(MADE_FOR)


def test_rays_list_of_checkpoints_has_the_name_that_an_attempt_removes() -> None:
    assert RAY_CHECKPOINT_LIST == CHECKPOINT_MANAGER_SNAPSHOT_FILENAME


def test_checkpoints_in_place_must_lie_inside_the_experiment_folder() -> None:
    """Why the run folder is Ray's experiment folder (decision 0005)."""
    assert "is_managed_checkpoint" in inspect.getsource(TrainContext.report)


def test_a_result_carries_what_the_leader_returned() -> None:
    assert "return_value" in {field.name for field in dataclasses.fields(ray.train.Result)}


def test_what_the_trainer_replaces_is_there() -> None:
    """god_ray.runtime.internals: a controller in the driver's process."""
    assert callable(TorchTrainer._create_default_callbacks)
    assert callable(TorchTrainer._initialize_and_run_controller)
    assert "_initialize_and_run_controller" in inspect.getsource(TorchTrainer.fit)
    assert TrainController.worker_group_cls is WorkerGroup
    assert "self.worker_group_cls.create" in inspect.getsource(TrainController._start_worker_group)
    assert "self._health_check_interval_s" in inspect.getsource(TrainController._poll_workers)
    assert inspect.iscoroutinefunction(TrainController._run_control_loop_iteration)
    assert {"after_controller_start", "_maybe_send_resource_request"} <= set(dir(FixedScalingPolicy))
    assert {"has_started", "abort"} <= set(dir(WorkerGroup))
    assert list(inspect.signature(DefaultFailurePolicy.make_decision).parameters) == [
        "self",
        "training_failed_error",
    ]
    assert ControllerError(ValueError("why")).controller_failure.args == ("why",)
    assert issubclass(WorkerGroupStartupTimeoutError, Exception)
    assert WORKER_GROUP_START_TIMEOUT_S_ENV_VAR == "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"


def test_workers_are_given_what_they_were_given_before() -> None:
    parameters = inspect.signature(RayTrainWorker.init_train_context).parameters
    assert [name for name in parameters if name != "_ray_trace_ctx"] == [  # Ray adds it once connected
        *("self", "train_run_context", "distributed_context", "synchronization_actor", "storage_context"),
        *("worker_callbacks", "controller_actor", "dataset_shard_provider", "checkpoint"),
        *("has_validation_fn", "current_report_index"),
    ]
    given = inspect.signature(WorkerGroup._init_train_context_on_workers).parameters
    assert list(given) == ["self", "workers", "sync_actor", "train_context_args"]


def test_what_is_left_out_has_these_names() -> None:
    names = {type(callback).__name__ for callback in TorchTrainer(print)._create_default_callbacks()}
    assert {"DatasetsCallback", "PlacementGroupCleanerCallback"} <= names


def test_an_execution_of_ray_data_can_be_shut_down() -> None:
    """god_ray.ingest.raydata stops one that still waits for its first block."""
    assert "force" in inspect.signature(StreamingExecutor.shutdown).parameters
    assert {"before_execution_starts", "on_execution_step"} <= set(dir(ExecutionCallback))


def test_rays_words_on_dead_workers_come_from_a_thread_of_this_name() -> None:
    assert f'"{RAYS_ERROR_THREAD}"' in inspect.getsource(ray._private.worker)


def test_worker_errors_come_by_rank() -> None:
    error = ray.train.WorkerGroupError("two failed", {1: ValueError("first")})
    assert list(error.worker_failures) == [1]
