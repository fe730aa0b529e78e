"""Recognise handwritten digits: a convolutional net with BatchNorm, dropout and shifted images.

In: batches with `image` [rows, 1, 8, 8] float32 and `label` [rows] int64. Out: about 98.5 % test accuracy
after the 12 epochs of run.yaml.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import god_ray

SIDE = 8


def block(inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


def network(dropout: float) -> nn.Module:
    return nn.Sequential(
        block(1, 16),
        block(16, 32),
        nn.MaxPool2d(2),
        block(32, 32),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(32 * (SIDE // 2) ** 2, 10),
    )


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["image"]), batch["label"])


def metrics(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"accuracy": (model(batch["image"]).argmax(dim=1) == batch["label"]).float()}


def shift(batch: dict[str, Tensor], rng: god_ray.RowRandom) -> dict[str, Tensor]:
    """Each image by up to one pixel in each direction, another way in each epoch."""
    by, side = rng.integers(0, 3, 2), torch.arange(SIDE)
    padded = functional.pad(batch["image"][:, 0], (1, 1, 1, 1))
    rows = torch.arange(len(padded))[:, None, None]
    down, right = (by[:, axis, None] + side for axis in (0, 1))
    return {**batch, "image": padded[rows, down[:, :, None], right[:, None, :]].unsqueeze(1)}


def build(config: dict) -> god_ray.Recipe:
    model = network(config["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.01)
    return god_ray.Recipe(model, optimizer, loss, metrics=metrics, transform=shift)
