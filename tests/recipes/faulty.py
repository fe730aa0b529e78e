"""The zoo with faults that the environment of one process asks for.

WRONG_GRADIENT=s  from step s on, one element of one gradient is off by one unit in the last place
FLIPPED_BIT=s     after step s, one bit of one parameter flips
THREADS=s         from step s on, this process computes with two threads; 0: from the building of the model on
RAISES=s          in step s, the loss raises
NAN_LOSS=s        from step s on, the loss is NaN
NAN_GRADIENT=s    in step s, a gradient is NaN
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import torch
import zoo
from torch import Tensor, nn

import god_ray


class Wide(nn.Module):
    """Layers large enough that two threads divide the work."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(zoo.WIDTH, 3000), nn.ReLU(), nn.LayerNorm(3000))
        self.head = nn.Linear(3000, zoo.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


zoo.MODELS["wide"] = Wide


def from_step(name: str) -> float:
    return float(os.environ.get(name, "inf"))


def build(config: dict) -> god_ray.Recipe:
    if from_step("THREADS") == 0:
        torch.set_num_threads(2)
    recipe = zoo.build(config)
    optimizer = recipe.optimizer
    last = list(recipe.model.parameters())[-1]

    def step() -> int:
        """The step that is being done; from the optimizer's own count, so it is right after a resume."""
        done = optimizer.state.get(last, {}).get("step", 0)
        return int(done) + 1

    def wrong(gradient: Tensor) -> Tensor:
        if step() == from_step("NAN_GRADIENT"):
            return gradient * float("nan")
        if step() < from_step("WRONG_GRADIENT"):
            return gradient
        changed = gradient.clone()
        changed.view(-1)[2] = torch.nextafter(changed.view(-1)[2], torch.tensor(9.0))
        return changed

    def flip(*_: object) -> None:
        if step() - 1 == from_step("FLIPPED_BIT"):
            last.data.view(torch.int32).view(-1)[0] ^= 1

    last.register_hook(wrong)
    optimizer.register_step_post_hook(flip)
    return replace(recipe, loss=faulty(recipe.loss, step))


def faulty(loss: Callable[..., Tensor], step: Callable[[], int]) -> Callable[..., Tensor]:
    def wrapped(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        if 0 < from_step("THREADS") <= step():
            torch.set_num_threads(2)
        if step() == from_step("RAISES"):
            raise ArithmeticError(f"no such thing as step {step()}")
        value = loss(model, batch)
        return value * float("nan") if step() >= from_step("NAN_LOSS") else value

    return wrapped
