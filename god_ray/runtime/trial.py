"""One real step, tried before a run is started: build, loss, backward, update, evaluation, each twice.

In: an assignment and the recipe as it was built before. Out: facts and warnings; the first fault is raised,
naming the user's line where there is one. The model is thrown away afterwards. Must not write anything.
"""

from __future__ import annotations

import warnings as python_warnings
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from torch import Tensor

from god_ray.checkpoint.state import capture, digest, view
from god_ray.errors import RecipeError, RunFailed
from god_ray.loop.audit import Audit
from god_ray.loop.leaf import LeafResult
from god_ray.loop.step import Step
from god_ray.recipe import Recipe
from god_ray.runtime import measure
from god_ray.runtime.assignment import Assignment
from god_ray.runtime.attempt import Attempt
from god_ray.runtime.sample import sample
from god_ray.sync.exchange import FixedOrderExchange
from god_ray.sync.group import Solo

T = TypeVar("T")
MAX_SCHEDULE_STEPS = 20_000


class Trial(Attempt):
    """`run` adds to `facts` and `warnings`."""

    def __init__(
        self, assignment: Assignment, earlier: Recipe, facts: dict[str, Any], warnings: list[str]
    ) -> None:
        """earlier: the same recipe, built before by itself; its model and schedule are used up."""
        super().__init__(assignment)
        self.earlier, self.facts, self.warnings = earlier, facts, warnings

    def run(self) -> None:
        """Raises the first fault as RecipeError, DataError, CheckpointError or RunFailed."""
        self.build()
        self._same_build()
        self.start()
        self._describe()
        self._leaf_twice()
        self._evaluate_twice()
        self._steps()
        self._schedule()
        self._lane_cost()
        self.facts["memory_bytes"] = measure.memory(self.local, self.device)

    def _same_build(self) -> None:
        """All workers build for themselves, so building twice must give the same."""
        first, second = (digest(r.model, r.optimizer) for r in (self.earlier, self.local.recipe))
        if first != second:
            raise RecipeError(
                f"{self.build_at}: build(config) made another model the second time.",
                f"Their digests are {first} and {second}.",
                "use no randomness but the global generators of torch, numpy and random (they are seeded "
                "before build), and keep nothing from call to call.",
            )

    def _describe(self) -> None:
        leaf = self.feed.leaf(self.plan.cursor_at(0), 0)
        assert leaf is not None, "the lowest lane has rows"
        batch = self.blame("transform(batch, rng)", lambda: self.runner.batch(leaf, 0))
        model = self.local.recipe.model
        self.facts |= {
            "columns": {
                name: {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
                for name, value in batch.items()
            },
            "num_parameters": sum(p.numel() for p in model.parameters()),
            "batch_norm": any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in model.modules()),
            "optimizer": self.local.fingerprint["optimizer"],
            "device": self.device.type,
            "init_from": self.taken and asdict(self.taken),
        }

    def _leaf_twice(self) -> None:
        """The same leaf again, after another one: what a recipe remembers or draws for itself shows here."""
        first = self.leaf(0)
        self.leaf(self.spec.lanes - 1)
        second = self.leaf(0)
        if first.bits() != second.bits():
            self._not_deterministic(first, second)
        names = [name for name, p in self.local.recipe.model.named_parameters() if p.requires_grad]
        self.facts["unused_parameters"] = [n for n, t in zip(names, first.tensors) if t is None]
        self.facts["loss"] = first.loss / first.weight if first.weight else None

    def _not_deterministic(self, first: LeafResult, second: LeafResult) -> None:
        model = self.local.recipe.model
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        names += [f"buffer {index}" for index in range(len(first.tensors) - len(names))]
        pairs = zip(names, first.tensors, second.tensors, strict=True)
        wrong = [name for name, a, b in pairs if not _same(a, b)]
        loss = (
            f"losses {first.loss / first.weight!r} and {second.loss / second.weight!r}"
            if first.weight
            else ""
        )
        what = f"{self.file.where(self.local.recipe.loss)}: the same rows gave two results."
        why = f"{loss or 'sums'}; different: {', '.join(wrong[:8]) or 'the loss only'}."
        fix = (
            "draw from the global generators of torch, numpy or random (they are seeded for every leaf), and "
            "keep no state outside the model's parameters and buffers."
        )
        if self.spec.determinism.mode == "bitwise":
            raise RecipeError(what, f"Losses and gradients must repeat: {why}", fix)
        self.warnings.append(f"{what} {why}")

    def _evaluate_twice(self) -> None:
        if self.assignment.evaluation is None:
            return
        results = [self.evaluate() for _ in range(2)]
        if repr(results[0]) != repr(results[1]) and self.spec.determinism.mode == "bitwise":
            raise RecipeError(
                f"{self.file.path}: the same evaluation gave two results.",
                f"They are {results[0]} and {results[1]}.",
                "compute metrics from (model, batch) alone.",
            )
        self.facts["metrics"] = results[0]

    def _steps(self) -> None:
        """Whole steps, as one worker would do them, and a snapshot as a checkpoint would take it."""
        spec, recipe, runner = self.spec, self.local.recipe, self.runner
        ranges, buffers = [(0, spec.lanes)], runner.buffers
        exchange = FixedOrderExchange(
            Solo(),
            [*runner.parameters, *buffers.templates],
            ranges,
            len(runner.parameters),
            buffers.other_bytes,
            self.device,
        )
        audit = Audit(self.feed, runner, ranges, 0, 1, enabled=False)
        clip = spec.clip_norm
        step = Step(self.plan, self.feed, runner, exchange, audit, 0, recipe.optimizer, recipe.schedule, clip)
        cursor = self.plan.cursor_at(0)
        self.blame("the first step", lambda: step.run(cursor, agreed=view(self.local.state).refuse_changed))
        capture(self.local.state)
        self.facts["step_s"] = measure.median_s(
            lambda: step.run(cursor), min(5, self.assignment.num_steps), expected=(RunFailed,)
        )

    def _schedule(self) -> None:
        """On the recipe that was built first: every step of the run, as far as that is quick."""
        schedule, optimizer = self.earlier.schedule, self.earlier.optimizer
        rates = [float(optimizer.param_groups[0]["lr"])]
        if schedule is not None:
            number = min(self.assignment.num_steps, MAX_SCHEDULE_STEPS)
            try:
                with python_warnings.catch_warnings():
                    python_warnings.simplefilter("ignore")  # that the optimizer has not stepped: it need not
                    for _ in range(number):
                        schedule.step()
                        rates.append(float(optimizer.param_groups[0]["lr"]))
            except Exception as error:
                raise RecipeError(
                    f"the schedule fails after step {len(rates)} of {self.assignment.num_steps}: "
                    f"{type(error).__name__}: {error}",
                    "It is stepped once after each optimizer step of the whole run.",
                    f"make it {self.assignment.num_steps} steps long: {self.build_at}",
                ) from error
        self.facts["learning_rate"] = {"first": rates[0], "highest": max(rates), "last": rates[-1]}

    def _lane_cost(self) -> None:
        """L leaves against one leaf of all rows. Not for compiled models: they would be compiled again."""
        self.facts["lane_cost"] = None
        if self.spec.compile or self.spec.lanes == 1:
            return
        plan, feed = sample(
            self.assignment.train, self.spec.batch_size, 1, self.preprocess, self.local.recipe.collate
        )
        lanes_s = measure.median_s(lambda: [self.leaf(lane) for lane in range(self.spec.lanes)], 5)
        self.plan, self.feed = plan, feed
        self.facts["lane_cost"] = lanes_s / measure.median_s(lambda: self.leaf(0), 5)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and torch.equal(_raw(a), _raw(b))


def _raw(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
