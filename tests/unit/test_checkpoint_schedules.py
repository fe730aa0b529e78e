"""Learning rates after a resume are those of the uninterrupted run, step by step (case 1.11)."""

from __future__ import annotations

import json

import pytest
from checkpoint_cases import OPTIMIZERS, SCHEDULES, make, train
from torch import nn
from torch.optim import SGD, lr_scheduler

from god_ray.checkpoint.state import Snapshot, TrainState, capture, digest, restore
from god_ray.errors import CheckpointError, RecipeError


def reread(snapshot: Snapshot) -> Snapshot:
    scalars = json.loads(json.dumps(snapshot.scalars, allow_nan=False))
    return Snapshot(snapshot.model, snapshot.optimizer, scalars)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("at", [0, 2, 5, 11])
def test_the_trace_goes_on_exactly(schedule: str, at: int) -> None:
    whole = make("momentum", schedule)
    trace = train(whole, at)
    snapshot = reread(capture(whole))
    resumed = make("momentum", schedule, seed=3)
    restore(snapshot, resumed)
    assert digest(resumed.model, resumed.optimizer) == digest(whole.model, whole.optimizer)
    assert train(resumed, 15, seed=5) == train(whole, 15, seed=5)
    assert digest(resumed.model, resumed.optimizer) == digest(whole.model, whole.optimizer)
    assert capture(resumed).scalars == capture(whole).scalars
    assert len(trace) == at


@pytest.mark.parametrize("optimizer", ["groups", "tensor lr"])
def test_groups_and_tensor_rates_go_on_too(optimizer: str) -> None:
    whole, resumed = make(optimizer, "warm-up + cosine"), make(optimizer, "warm-up + cosine", seed=3)
    train(whole, 4)
    restore(reread(capture(whole)), resumed)
    assert train(resumed, 10, seed=5) == train(whole, 10, seed=5)
    assert digest(resumed.model, resumed.optimizer) == digest(whole.model, whole.optimizer)


def test_a_milestone_at_an_epoch_fires_on_time() -> None:
    """Ten steps an epoch, milestone at epoch 4, checkpoint after epoch 2."""
    model = nn.Linear(1, 1)
    opt = SGD(model.parameters(), lr=1.0)
    first = TrainState(model, opt, lr_scheduler.MultiStepLR(opt, [40]))
    for _ in range(20):
        opt.step()
        first.schedule.step()  # type: ignore[union-attr]
    other = nn.Linear(1, 1)
    opt2 = SGD(other.parameters(), lr=1.0)
    second = TrainState(other, opt2, lr_scheduler.MultiStepLR(opt2, [40]))
    restore(reread(capture(first)), second)
    rates = []
    for _ in range(25):
        opt2.step()
        second.schedule.step()  # type: ignore[union-attr]
        rates.append(opt2.param_groups[0]["lr"])
    assert rates == [1.0] * 19 + [0.1] * 6


def test_a_missing_schedule_is_an_error_both_ways() -> None:
    with_one, without = make("sgd", "step"), make("sgd")
    with pytest.raises(
        CheckpointError, match=r"(?s)schedule changed.*checkpoint: none; in the recipe: StepLR"
    ):
        restore(capture(without), with_one)
    with pytest.raises(
        CheckpointError, match=r"(?s)schedule changed.*checkpoint: StepLR; in the recipe: none"
    ):
        restore(capture(with_one), without)


def test_another_schedule_inside_is_an_error() -> None:
    def nested(*parts: type) -> TrainState:
        model = nn.Linear(1, 1)
        opt = SGD(model.parameters(), lr=1.0)
        inner = [part(opt, 1.0) for part in parts]
        return TrainState(model, opt, lr_scheduler.SequentialLR(opt, inner, [3] * (len(parts) - 1)))

    saved = capture(nested(lr_scheduler.ConstantLR, lr_scheduler.ExponentialLR))
    with pytest.raises(CheckpointError, match=r"SequentialLR\(ConstantLR, ConstantLR\)"):
        restore(saved, nested(lr_scheduler.ConstantLR, lr_scheduler.ConstantLR))


def test_plateau_is_refused() -> None:
    """Inside another schedule torch refuses it itself."""
    model = nn.Linear(1, 1)
    opt = SGD(model.parameters(), lr=1.0)
    with pytest.raises(RecipeError, match="needs a metric"):
        TrainState(model, opt, lr_scheduler.ReduceLROnPlateau(opt))


def test_a_schedule_of_another_optimizer_is_refused() -> None:
    model = nn.Linear(1, 1)
    opt, other = SGD(model.parameters(), lr=1.0), SGD(model.parameters(), lr=1.0)
    with pytest.raises(RecipeError, match="drives another optimizer"):
        TrainState(model, opt, lr_scheduler.StepLR(other, 3))


def test_a_schedule_with_a_function_inside_is_refused_by_name() -> None:
    state = make("sgd", "step")
    state.schedule.curve = lambda step: step  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match=r"schedule\.curve"):
        capture(state)


def test_every_optimizer_works_with_a_schedule() -> None:
    for optimizer in OPTIMIZERS:
        state = make(optimizer, "lambda")
        train(state, 2)
        restore(reread(capture(state)), make(optimizer, "lambda", seed=2))
