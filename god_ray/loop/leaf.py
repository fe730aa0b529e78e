"""One leaf: forward and backward of one lane's rows in one step.

In: a place (cursor, lane) and its rows. Out: gradients and buffer contributions for the exchange, loss,
weight, and on demand a hash of all its bits. The result is a function of state, place and rows alone:
generators are seeded and buffers reset first, so it has the same bits in any process. A recipe's mistakes
show here as RecipeError.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from god_ray.errors import RecipeError
from god_ray.loop.buffers import Buffers
from god_ray.loop.ports import LeafData
from god_ray.loop.seeding import TRAIN, seed_generators
from god_ray.plan import Cursor
from god_ray.recipe import Recipe
from god_ray.rowrandom import RowRandom


@dataclass
class LeafResult:
    """`tensors`: gradients (or None), then buffer contributions; `loss`, `weight`: float64 sums."""

    tensors: list[Tensor | None]
    loss: float
    weight: float

    def bits(self) -> int:
        """A 64-bit hash of everything the leaf produced."""
        digest = xxhash.xxh3_64()
        for tensor in self.tensors:
            if tensor is not None:
                flat = tensor.detach().contiguous().cpu().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
        digest.update(repr((self.loss, self.weight)).encode())
        return digest.intdigest()


class LeafRunner:
    """`model` is what the loss is called with: the plain module, a compiled one, or DDP around it."""

    def __init__(
        self, recipe: Recipe, model: nn.Module, seed: int, device: torch.device, mixed: bool
    ) -> None:
        self.recipe, self.model, self.seed, self.device = recipe, model, seed, device
        self.take = True
        """False: gradients stay in the parameters, where DDP reduces them."""
        self.parameters = [p for p in recipe.model.parameters() if p.requires_grad]
        self.buffers = Buffers(recipe.model)
        self._context: Callable[[], Any] = (
            (lambda: torch.autocast(device.type, torch.bfloat16)) if mixed else nullcontext
        )
        self._scales: dict[tuple[int, torch.dtype], Tensor] = {}

    def run(self, cursor: Cursor, lane: int, data: LeafData, keep: bool = True) -> LeafResult:
        """`keep=False` recomputes a leaf without a trace (audit). Raises RecipeError on a broken loss."""
        seed_generators(TRAIN, self.seed, cursor.step, lane)
        self.buffers.reset()
        if self.take:
            for parameter in self.parameters:
                parameter.grad = None
        num_rows = len(data.rows)
        batch = self.batch(data, cursor.epoch)
        with self._context():
            loss, weight = split_loss(self.recipe.loss(self.model, batch), num_rows)
        torch.autograd.backward(loss, self._scale(num_rows if weight is None else 1, loss.dtype))
        value = float(loss.detach())
        tensors = [p.grad for p in self.parameters] if self.take else [None] * len(self.parameters)
        tensors += self.buffers.contribute(lane, num_rows, keep)
        if weight is None:
            return LeafResult(tensors, value * num_rows, float(num_rows))
        return LeafResult(tensors, value, weight)

    def batch(self, data: LeafData, epoch: int) -> dict[str, Tensor]:
        """The rows on the device, transformed."""
        batch = data.batch
        if self.device.type != "cpu":
            batch = {k: v.pin_memory().to(self.device, non_blocking=True) for k, v in batch.items()}
        if self.recipe.transform is not None:
            batch = self.recipe.transform(batch, RowRandom(self.seed, epoch, data.rows))
        return batch

    def _scale(self, num_rows: int, dtype: torch.dtype) -> Tensor:
        """The gradient at the root: a mean over n rows is made a sum by n, at no cost."""
        key = (num_rows, dtype)
        if key not in self._scales:
            self._scales[key] = torch.tensor(float(num_rows), dtype=dtype, device=self.device)
        return self._scales[key]


def split_loss(result: object, num_rows: int) -> tuple[Tensor, float | None]:
    """(mean, None) or (sum, weight) from what a recipe's loss returned. RecipeError on anything else."""
    loss, weight = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(type(loss))
        raise RecipeError(
            f"loss returned {shape} for {num_rows} rows.",
            "It must return a scalar float tensor (the mean over the rows) or a pair (sum, weight).",
            "take .mean() of the per-row losses, or return (losses.sum(), weights.sum()).",
        )
    if not loss.requires_grad:
        raise RecipeError(
            "loss returned a tensor without gradient.",
            "Nothing that it was computed from depends on the model's parameters.",
            "do not detach the model's output, and do not compute it under torch.no_grad().",
        )
    return loss.reshape(()), None if weight is None else float(weight)
