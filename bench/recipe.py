"""The model that every comparison trains: a plain MLP with SGD, here as a god_ray recipe.

In: `config["widths"]`, layer widths from input to output. Out: a Recipe; `network` and `optimizer` alone
are what the comparisons without god_ray use, so that all train the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

SMALL = (64, 256, 256, 10)
LARGE = (64, 1024, 1024, 64, 10)


def network(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def optimizer(parameters: Iterable[Tensor], fused: bool | None = None) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, fused=fused)


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def build(config: dict):  # type: ignore[no-untyped-def]  # god_ray is only imported where it is used
    import god_ray

    model = network(config["widths"])
    return god_ray.Recipe(model=model, optimizer=optimizer(model.parameters()), loss=loss)
