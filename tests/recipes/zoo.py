"""Small models, each with something that is easily lost or made to depend on the number of workers.

`config["model"]` chooses. Batches: `x` float32 [rows, 12], `y` int64 in 0..4, `mask` float32, `id` int64.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

import god_ray

WIDTH, CLASSES = 12, 5
Batch = dict[str, Tensor]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def masked(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """(sum, weight); a lane whose rows are all masked has weight 0."""
    losses = functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
    return (losses * batch["mask"]).sum(), batch["mask"].sum()


def metrics(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch if isinstance(model, Unused) else batch["x"])
    return {
        "accuracy": (logits.argmax(dim=1) == batch["y"]).float(),
        "loss": functional.cross_entropy(logits, batch["y"], reduction="none"),
    }


def mlp(hidden: int = 24, *middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, hidden), *middle, nn.Tanh(), nn.Linear(hidden, CLASSES))


class Unused(nn.Module):
    """One parameter that no leaf uses, one that only leaves with certain rows use."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.never = nn.Parameter(torch.ones(3))
        self.sometimes = nn.Linear(CLASSES, CLASSES)

    def forward(self, batch: Batch) -> Tensor:
        logits = self.body(batch["x"])
        if bool((batch["id"] % 7 == 0).any()):
            logits = logits + self.sometimes(logits)
        return logits


class Buffers(nn.Module):
    """A constant whose bits an average would change, a replaced float buffer, counters, a bool, BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 16)
        self.norm = nn.BatchNorm1d(16)
        self.plain = nn.BatchNorm1d(16, momentum=None)
        self.last = nn.Linear(16, CLASSES)
        self.register_buffer("constant", torch.linspace(0.1, 0.9, 16))
        self.register_buffer("average", torch.zeros(CLASSES, dtype=torch.float64))
        self.register_buffer("rows_seen", torch.tensor(0))
        self.register_buffer("order", torch.arange(6, dtype=torch.int32).view(2, 3))
        self.register_buffer("seen_any", torch.tensor(False))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.last(torch.relu(self.plain(self.norm(self.first(x))) + self.constant))
        if self.training:
            mean = logits.detach().double().mean(dim=0)
            self.average = 0.9 * self.average + 0.1 * mean  # another tensor, not the same one changed
            self.rows_seen += len(x)
            self.seen_any.fill_(True)
            self.scratch.add_(mean[:2].float())
        return logits


class Mixed(nn.Module):
    """One layer in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 16).double(), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.double())).float())


class Tied(nn.Module):
    """An embedding that is also the output layer; a parameter without dimensions; a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 10)
        self.body = nn.Linear(WIDTH, 10)
        self.head = nn.Linear(10, CLASSES, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.frozen = nn.Linear(CLASSES, CLASSES).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        nearest = x[:, :CLASSES].argmax(dim=1)
        logits = self.head(torch.tanh(self.body(x) + self.embed(nearest)))
        return self.frozen(logits) + self.scale * logits


class Transformer(nn.Module):
    """Attention with dropout, LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.lift(x.view(-1, 4, 3))).mean(dim=1))


class Conv(nn.Module):
    """Convolutions and BatchNorm over channels, kept channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2)
        )
        self.head = nn.Linear(6 * 2, CLASSES)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.view(-1, 1, 3, 4)).flatten(1))


def plain() -> nn.Module:
    """Draws nothing: the same weights wherever it is built."""
    model = mlp()
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.arange(parameter.numel(), dtype=torch.float32)
            parameter.copy_((values.mul(0.7).sin() / 3).view(parameter.shape))
    return model


def dropout() -> nn.Module:
    return mlp(24, nn.Dropout(0.3))


def batch_norm() -> nn.Module:
    return mlp(24, nn.BatchNorm1d(24), nn.Dropout(0.1))


def large() -> nn.Module:
    """1.3 MB of float32: above the size at which the exchange goes by slices."""
    return nn.Sequential(
        nn.Linear(WIDTH, 560), nn.ReLU(), nn.Linear(560, 560), nn.ReLU(), nn.Linear(560, CLASSES)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "plain": plain,
    "dropout": dropout,
    "batch_norm": batch_norm,
    "unused": Unused,
    "buffers": Buffers,
    "mixed": Mixed,
    "tied": Tied,
    "transformer": Transformer,
    "conv": Conv,
    "large": large,
}


def warm_up_then_cosine(step: int) -> float:
    return (step + 1) / 6 if step < 5 else 0.5 * (1 + math.cos(math.pi * min((step - 5) / 40, 1.0)))


def sequential(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6),
        lr_scheduler.CosineAnnealingLR(optimizer, 20),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [6])


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, warm_up_then_cosine),
    "milestone": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [16], 0.1),
    "sequential": sequential,
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=30),
}


def optimizer_of(config: dict, model: nn.Module) -> torch.optim.Optimizer:
    kind = config.get("optimizer", "adamw")
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if kind == "rmsprop":  # no fused form
        return torch.optim.RMSprop(model.parameters(), lr=0.01)
    if kind == "groups":
        few, many = [], []
        for parameter in model.parameters():
            (few if parameter.dim() < 2 else many).append(parameter)
        groups = [{"params": many, "lr": 0.02}, {"params": few, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1, amsgrad=True)
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def record_gradients(optimizer: torch.optim.Optimizer, model: nn.Module, folder: str) -> None:
    """Before each update, the gradients that it will use."""
    names = [name for name, _ in model.named_parameters()]
    steps = count()

    def save(*_: object) -> None:
        gradients = {n: p.grad.numpy() for n, p in zip(names, model.parameters()) if p.grad is not None}
        np.savez(f"{folder}/{next(steps)}-{os.getpid()}.npz", **gradients)

    optimizer.register_step_pre_hook(save)


def record_ids(loss: Callable[..., object], folder: str) -> Callable[..., object]:
    """The loss, which also writes down the ids it is called with: a line per leaf, a file per model."""
    path = f"{folder}/{os.getpid()}-{time.time_ns()}.jsonl"

    def recorded(model: nn.Module, batch: Batch) -> object:
        with open(path, "a") as file:
            file.write(f"{batch['id'].tolist()}\n")
        return loss(model, batch)

    return recorded


def record_draws(loss: Callable[..., object], folder: str) -> Callable[..., object]:
    """The loss, which then writes down a draw of each generator, and makes a few more: a bad habit."""
    path = f"{folder}/{os.getpid()}-{time.time_ns()}.jsonl"
    extra = int(os.environ.get("EXTRA_DRAWS", "0"))

    def recorded(model: nn.Module, batch: Batch) -> object:
        result = loss(model, batch)
        draws = [float(torch.rand(1)), float(np.random.random()), random.random()]
        with open(path, "a") as file:
            file.write(f"{json.dumps([batch['id'].tolist(), draws])}\n")
        for _ in range(extra):
            torch.rand(3), np.random.random(3), random.random()
        return result

    return recorded


def noisy(batch: Batch, rng: god_ray.RowRandom) -> Batch:
    """Augmentation: noise, and a shift of some rows."""
    x = batch["x"] + 0.1 * rng.normal(WIDTH)
    return {**batch, "x": torch.where(rng.random(1) < 0.3, x.roll(1, dims=1), x)}


def build(config: dict) -> god_ray.Recipe:
    model = MODELS[config["model"]]()
    optimizer = optimizer_of(config, model)
    if "record" in config:
        record_gradients(optimizer, model, config["record"])
    kind = config.get("schedule", "lambda")
    schedule = SCHEDULES[kind](optimizer) if kind else None
    loss = masked if config.get("masked") else cross_entropy
    if config["model"] == "unused":
        loss = unused_loss
    if "RECORD_DRAWS" in os.environ:
        loss = record_draws(loss, os.environ["RECORD_DRAWS"])
    if "RECORD_IDS" in os.environ:
        loss = record_ids(loss, os.environ["RECORD_IDS"])
    transform = noisy if config.get("transform") else None
    return god_ray.Recipe(model, optimizer, loss, schedule, metrics, transform)


def unused_loss(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch), batch["y"])
