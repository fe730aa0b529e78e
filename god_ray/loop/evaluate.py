"""Evaluation: each row once, the same numbers to the last digit at any number of workers.

In: a feed over the evaluation set in its own plan (no shuffle). Out: {name: mean, "num_rows": n}. Sums are
float64 per lane, in row order, then folded along the fixed tree. Must not change the model: modes are put
back as they were.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from god_ray.errors import RecipeError
from god_ray.loop.leaf import LeafRunner
from god_ray.loop.ports import Feed
from god_ray.loop.seeding import EVALUATE, seed_generators
from god_ray.monitor.clean import plain
from god_ray.plan import DataPlan
from god_ray.recipe import Recipe
from god_ray.sync.fold import fold_floats
from god_ray.sync.group import Group

Sums = dict[str, tuple[float, float]]


class Evaluation:
    def __init__(
        self, recipe: Recipe, runner: LeafRunner, plan: DataPlan, feed: Feed, group: Group, lanes: range
    ) -> None:
        self.recipe, self.runner, self.plan, self.feed = recipe, runner, plan, feed
        self.group, self.lanes = group, lanes

    def run(self, seed: int, mixed: bool) -> dict[str, float]:
        """One pass over the set. Raises RecipeError when `metrics` or `loss` break their contract."""
        model = self.recipe.model
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        self.feed.start(self.plan.cursor_at(0), self.lanes)
        mine: dict[int, Sums] = {}
        context: Any = torch.autocast(self.runner.device.type, torch.bfloat16) if mixed else nullcontext()
        with torch.no_grad(), context:
            for step in range(self.plan.steps_per_epoch):
                for lane in self.lanes:
                    self._leaf(seed, step, lane, mine.setdefault(lane, {}))
        for module, training in modes:
            module.training = training
        self.runner.buffers.reset()
        return self._reduce(mine)

    def _leaf(self, seed: int, step: int, lane: int, sums: Sums) -> None:
        data = self.feed.leaf(self.plan.cursor_at(step), lane)
        if data is None:
            return
        seed_generators(EVALUATE, seed, step, lane)
        batch = data.batch
        if self.runner.device.type != "cpu":
            batch = {k: v.to(self.runner.device) for k, v in batch.items()}
        num_rows = len(data.rows)
        self.runner.buffers.reset()  # a forward pass may change buffers in evaluation mode too
        metrics = self.recipe.metrics
        values = {} if metrics is None else _mapping(metrics(self.recipe.model, batch))
        if "loss" not in values:
            values["loss"] = self.recipe.loss(self.recipe.model, batch)
        for name, value in values.items():
            total, count = _sum_and_count(name, value, num_rows)
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + count)
        rows = sums.get("num_rows", (0.0, 0.0))
        sums["num_rows"] = (rows[0] + num_rows, 1.0)

    def _reduce(self, mine: dict[int, Sums]) -> dict[str, float]:
        """JSON keeps float64 exactly (shortest round-trip form)."""
        lanes: dict[int, Sums] = {}
        for data in self.group.gather_bytes(json.dumps(mine).encode()):
            lanes |= {int(lane): sums for lane, sums in json.loads(data.decode()).items()}
        result = {}
        for name in {name: None for lane in sorted(lanes) for name in lanes[lane]}:
            parts = [lanes[lane].get(name) for lane in sorted(lanes)]
            total = fold_floats([None if p is None else p[0] for p in parts]) or 0.0
            count = fold_floats([None if p is None else p[1] for p in parts]) or 0.0
            result[name] = int(total) if name == "num_rows" else total / count if count else math.nan
        return result


def _mapping(values: object) -> dict[str, object]:
    if isinstance(values, Mapping) and "num_rows" not in values:
        return dict(values)
    raise RecipeError(
        f"metrics returned {type(values).__name__}.",
        'It must return a dict {name: per-row tensor, or (sum, count)}; "num_rows" is god_ray\'s own.',
        'return {"accuracy": (prediction == batch["label"])} for example.',
    )


def _sum_and_count(name: str, value: object, num_rows: int) -> tuple[float, float]:
    """Float64 sum and count of a per-row tensor [n], a (sum, count) pair, or (loss only) a mean."""
    if isinstance(value, tuple) and len(value) == 2:
        pair = plain({f"{name} (sum)": value[0], f"{name} (count)": value[1]})
        total, count = (number for number in pair.values())
        if isinstance(total, int | float) and isinstance(count, int | float):
            return float(total), float(count)
    if isinstance(value, Tensor) and name == "loss" and value.numel() == 1:
        return float(value) * num_rows, float(num_rows)
    if isinstance(value, Tensor) and value.shape == (num_rows,):
        return float(value.double().sum()), float(num_rows)
    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    raise RecipeError(
        f"metric {name!r} is {shape} for {num_rows} rows.",
        "It must be one number per row (shape [rows]), or a pair (sum, count).",
        "do not average over the batch: return the per-row values.",
    )
