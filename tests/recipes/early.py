"""A metric that stops improving on low rows two updates before it does on high ones (case 2.06)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import god_ray


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 5)
        self.register_buffer("updates", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.updates += 1
        return self.body(x)


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def metrics(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    limit = torch.where(batch["id"] < 11, 3, 5)
    return {"score": torch.minimum(limit, model.updates.expand(len(limit))).float()}


def build(config: dict) -> god_ray.Recipe:
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return god_ray.Recipe(model=model, optimizer=optimizer, loss=loss, metrics=metrics)
