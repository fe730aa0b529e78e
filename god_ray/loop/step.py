"""One optimizer update over one global batch.

In: a cursor. Out: the record of the step that everyone agrees on. The state changes only after the
exchange, by the same reduced gradient on every worker; whatever is wrong (rows, NaN, an audit) is seen by
all of them before that. Must not know how workers come and go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from god_ray.errors import RowsMismatch, RunFailed
from god_ray.loop.audit import Audit
from god_ray.loop.leaf import LeafResult, LeafRunner
from god_ray.loop.ports import Exchange, Feed
from god_ray.plan import Cursor, DataPlan
from god_ray.sync.exchange import LeafTensors, Reduced
from god_ray.sync.fold import fold_floats
from god_ray.sync.notes import Said, signed, unsigned


class Step:
    def __init__(
        self,
        plan: DataPlan,
        feed: Feed,
        runner: LeafRunner,
        exchange: Exchange,
        audit: Audit,
        rank: int,
        optimizer: Optimizer,
        schedule: LRScheduler | None,
        clip_norm: float | None,
    ) -> None:
        self.plan, self.feed, self.runner, self.exchange, self.audit = plan, feed, runner, exchange, audit
        self.optimizer, self.schedule, self.clip_norm = optimizer, schedule, clip_norm
        self.lo, self.hi = exchange.ranges[rank]
        self.strided = [i for i, p in enumerate(runner.parameters) if not p.is_contiguous()]

    def run(
        self, cursor: Cursor, tell: Callable[[], Said] = Said, agreed: Callable[[], None] = lambda: None
    ) -> tuple[Reduced, dict[str, Any]]:
        """Do step `cursor`. Returns all notes and the ledger's record. Raises RunFailed, agreed by all.

        `tell` is asked after the leaves: what has this worker to tell the others beside the step? `agreed` is
        called once all workers are known to have committed the step before, in the same state, which is still
        there: what comes after that, a loss that is no number for one, is this step's own trouble.
        """
        begin = perf_counter()
        self.cursor, self.tell = cursor, tell
        self.results: dict[int, LeafResult] = {}
        self.num_rows, self.row_checksum, self.data_s = 0, 0, 0.0
        rows = self.plan.leaf_rows(cursor.step_in_epoch)
        reduced = self.exchange.run(self._leaf, self._take_notes, rows)
        exchanged = perf_counter()
        self._compare(reduced, rows)
        agreed()
        applied = perf_counter()
        record = self._judge(reduced, rows)
        record["grad_norm"] = self._apply(reduced, record["weight"], sum(rows))
        end = perf_counter()
        compute_s = self.computed - begin - self.data_s
        record["timings"] = {
            "data_s": round(self.data_s, 6),
            "compute_s": round(compute_s, 6),
            "exchange_s": round(exchanged - self.packed, 6),
            "optimizer_s": round(end - applied, 6),
        }
        return reduced, record

    def _leaf(self, lane: int) -> LeafTensors | None:
        begin = perf_counter()
        data = self.feed.leaf(self.cursor, lane)
        self.data_s += perf_counter() - begin
        if data is None:
            return None
        self.num_rows += len(data.rows)
        self.row_checksum += data.checksum
        result = self.runner.run(self.cursor, lane, data)
        self.results[lane] = result
        if self.audit.due:
            self.audit.note_own(lane, result)
        return result.tensors

    def _take_notes(self, notes: Any) -> None:
        loss, weight = notes["loss"], notes["weight"]
        for lane, result in self.results.items():
            loss[lane - self.lo], weight[lane - self.lo] = result.loss, result.weight
        buffers = self.runner.buffers
        if buffers.templates or buffers.other_bytes:
            notes["changed"], notes["first"] = buffers.changed, buffers.first
        audit_lane, audit_hash = self.audit.take_notes(notes, self.cursor)
        self.computed = perf_counter()
        notes["said"] = self.tell()._replace(
            step=self.cursor.step,
            rows=self.num_rows,
            checksum=signed(self.row_checksum),
            audit_lane=audit_lane,
            audit_hash=signed(audit_hash),
        )
        self.packed = perf_counter()

    def _compare(self, reduced: Reduced, rows: Sequence[int]) -> None:
        """Do all workers agree, and with the plan? Every failure is the same on every worker."""
        cursor, steps = self.cursor, [said.step for said in reduced.said]
        num_rows = sum(said.rows for said in reduced.said)
        if num_rows != sum(rows) or any(step != cursor.step for step in steps):
            raise RowsMismatch(
                f"step {cursor.step + 1} used {num_rows} rows at steps {steps}.",
                f"The plan has {sum(rows)} rows for step {cursor.step}.",
                "check whether the data set changed while the run was on: god-ray check SPEC.",
                agreed=True,
            )
        self.audit.compare(reduced, cursor)

    def _judge(self, reduced: Reduced, rows: Sequence[int]) -> dict[str, Any]:
        """The record of this step; the same on every worker, and so is every failure."""
        cursor = self.cursor
        losses = _present(reduced.lane_values("loss"), rows)
        weight = fold_floats(_present(reduced.lane_values("weight"), rows)) or 0.0
        loss = (fold_floats(losses) or 0.0) / weight if weight > 0 else math.nan
        if not math.isfinite(loss):
            self._refuse_loss(loss, losses, weight)
        return {
            "step": cursor.step + 1,
            "epoch": cursor.epoch,
            "step_in_epoch": cursor.step_in_epoch,
            "num_rows": sum(rows),
            "row_checksum": str(unsigned(sum(said.checksum for said in reduced.said))),
            "loss": loss,
            "weight": weight,
            "lr": float(self.optimizer.param_groups[0]["lr"]),
        }

    def _refuse_loss(self, loss: float, losses: list[float | None], weight: float) -> None:
        bad = [lane for lane, value in enumerate(losses) if value is not None and not math.isfinite(value)]
        where = f"lanes {bad}" if bad else f"a total weight of {weight}"
        raise RunFailed(
            f"the loss is {loss} at {_place(self.cursor)}, from {where}.",
            "The step was not applied on any worker. Done again, it would come to the same.",
            "look for bad rows in this step, or start a new run with a lower learning rate or clip_norm.",
            agreed=True,
        )

    def _apply(self, reduced: Reduced, weight: float, num_rows: int) -> float | None:
        parameters = self.runner.parameters
        present = reduced.notes["present"].any(axis=0).tolist()
        reduced.divide(weight)
        for parameter, gradient, there in zip(parameters, reduced.tensors, present):
            parameter.grad = gradient if there else None
        self._lay_out(parameters)
        buffers = self.runner.buffers
        if buffers.templates or buffers.other_bytes:
            changed = reduced.notes["changed"].any(axis=0)
            buffers.settle(reduced.tensors[len(parameters) :], changed, reduced.notes["first"][0], num_rows)
        norm = self._clip(parameters)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return norm

    def _lay_out(self, parameters: Sequence[Tensor]) -> None:
        """Fused optimizers walk raw memory: a gradient must lie as its parameter does (channels_last)."""
        for parameter in (parameters[i] for i in self.strided):
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)

    def _clip(self, parameters: Sequence[Tensor]) -> float | None:
        if self.clip_norm is None:
            return None
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.clip_norm))
        if not math.isfinite(norm):
            raise RunFailed(
                f"the gradient norm is {norm} at {_place(self.cursor)}.",
                "The step was not applied on any worker. Done again, it would come to the same.",
                "look for divisions by zero or square roots of zero in the loss.",
                agreed=True,
            )
        return norm


def _place(cursor: Cursor) -> str:
    return f"step {cursor.step + 1} (epoch {cursor.epoch + 1})"


def _present(values: list[float], rows: Sequence[int]) -> list[float | None]:
    return [value if count else None for value, count in zip(values, rows)]
