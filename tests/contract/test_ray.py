"""What god_ray relies on in Ray beyond its documentation: fails first when Ray changes."""

from __future__ import annotations

import dataclasses
import inspect

import ray
import ray.train
from ray.train.v2._internal.constants import CHECKPOINT_MANAGER_SNAPSHOT_FILENAME
from ray.train.v2._internal.execution.context import TrainContext

from god_ray.runtime.internals import CHECKPOINT_LIST


def test_the_pinned_ray_is_the_one_that_was_measured() -> None:
    assert ray.__version__.startswith("2.60.")


def test_rays_list_of_checkpoints_has_the_name_that_an_attempt_removes() -> None:
    assert CHECKPOINT_LIST == CHECKPOINT_MANAGER_SNAPSHOT_FILENAME


def test_checkpoints_in_place_must_lie_inside_the_experiment_folder() -> None:
    """Why the run folder is Ray's experiment folder (decision 0005)."""
    assert "is_managed_checkpoint" in inspect.getsource(TrainContext.report)


def test_a_result_carries_what_the_leader_returned() -> None:
    assert "return_value" in {field.name for field in dataclasses.fields(ray.train.Result)}


def test_worker_errors_come_by_rank() -> None:
    error = ray.train.WorkerGroupError("two failed", {1: ValueError("first")})
    assert list(error.worker_failures) == [1]
