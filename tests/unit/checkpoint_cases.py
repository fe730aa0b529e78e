"""Training states that the checkpoint tests share: small, but each with something that is easily lost."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler

from god_ray.checkpoint.state import TrainState

torch.set_num_threads(1)  # tensors this small gain nothing by more, and suffer on a busy machine


class Net(nn.Module):
    """Tied weights, BatchNorm, an unused and a frozen parameter, all kinds of buffers, a scalar, bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.brain = nn.Parameter(torch.randn(5, dtype=torch.bfloat16))
        self.unused = nn.Parameter(torch.randn(2, 3))
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("cache", torch.zeros(3), persistent=False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("empty", torch.zeros(0, 4))
        self.register_buffer("absent", None)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.cache.mul_(0.5).add_(1)
        hidden = self.norm(self.conv(self.embed(x).transpose(1, 2))).transpose(1, 2)
        return self.head(hidden) * self.scale + self.brain.float().sum()


Build = Callable[[nn.Module], Optimizer]

OPTIMIZERS: dict[str, Build] = {
    "sgd": lambda m: SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda m: Adam(m.parameters(), lr=0.01, amsgrad=True, foreach=False),
    "foreach": lambda m: AdamW(m.parameters(), lr=0.01, foreach=True),
    "fused": lambda m: AdamW(m.parameters(), lr=0.01, fused=True),
    "tensor lr": lambda m: AdamW(m.parameters(), lr=torch.tensor(0.01)),
    "groups": lambda m: AdamW(
        [
            {"params": [m.scale, m.brain], "weight_decay": 0.0, "note": "no decay"},
            {"params": [m.unused, m.embed.weight], "lr": 0.003, "betas": (0.8, 0.95)},
        ],
        lr=0.01,
    ),
    "named": lambda m: AdamW(m.named_parameters(), lr=0.01),
}


class Warmup:
    """A callable object: LambdaLR keeps its __dict__."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return min(1.0, (step + 1) / 5) * 0.999**self.calls


SCHEDULES: dict[str, Callable[[Optimizer], lr_scheduler.LRScheduler]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.95**step),
    "object": lambda o: lr_scheduler.LambdaLR(o, Warmup()),
    "warm-up + cosine": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(o, 20)], [5]
    ),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=60),
    "multi step": lambda o: lr_scheduler.MultiStepLR(o, [4, 9, 9, 12], 0.5),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 7), lr_scheduler.ExponentialLR(o, 0.97)]
    ),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, 2),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, 5, cycle_momentum=False),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 30),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9 + 0.01 * math.sin(step)),
    "step": lambda o: lr_scheduler.StepLR(o, 4),
}


def make(optimizer: str = "fused", schedule: str | None = None, seed: int = 0) -> TrainState:
    torch.manual_seed(seed)
    model = Net()
    opt = OPTIMIZERS[optimizer](model)
    return TrainState(model, opt, None if schedule is None else SCHEDULES[schedule](opt))


def train(state: TrainState, steps: int, seed: int = 100) -> list[list[float]]:
    """`steps` updates on seeded data; the learning rates of each group after each."""
    generator = torch.Generator().manual_seed(seed)
    rates = []
    for _ in range(steps):
        x = torch.randint(0, 7, (4, 5), generator=generator)
        state.optimizer.zero_grad()
        nn.functional.cross_entropy(state.model(x).flatten(0, 1), x.flatten()).backward()
        state.optimizer.step()
        if state.schedule is not None:
            state.schedule.step()
        rates.append([float(group["lr"]) for group in state.optimizer.param_groups])
    return rates
