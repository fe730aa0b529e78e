"""Recognise handwritten digits: a small network with dropout, AdamW, warm-up and cosine decay.

In: batches with `image` [rows, 64] float32 and `label` [rows] int64. Out: about 97.5 % test accuracy
after the 30 epochs of run.yaml.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

import god_ray


def network(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(64, 10),
    )


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch["image"]), batch["label"])


def metrics(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    logits = model(batch["image"])
    return {
        "accuracy": (logits.argmax(dim=1) == batch["label"]).float(),
        "loss": functional.cross_entropy(logits, batch["label"], reduction="none"),
    }


def warm_up_then_cosine(step: int, warmup_steps: int, total_steps: int) -> float:
    """Factor on the learning rate before step `step` (from 0): a line up, then half a cosine down to 0."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def build(config: dict) -> god_ray.Recipe:
    model = network(config["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: warm_up_then_cosine(step, config["warmup_steps"], config["total_steps"]),
    )
    return god_ray.Recipe(model=model, optimizer=optimizer, loss=loss, schedule=schedule, metrics=metrics)
