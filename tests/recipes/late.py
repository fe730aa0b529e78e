"""A model that stops using one of its parameters after three updates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import god_ray


class Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 5)
        self.warm_up = nn.Linear(12, 5)
        self.register_buffer("updates", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.updates += 1
        return self.body(x) + self.warm_up(x) if self.updates <= 3 else self.body(x)


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def build(config: dict) -> god_ray.Recipe:
    model = Late()
    return god_ray.Recipe(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)
