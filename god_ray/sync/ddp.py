"""`determinism: relaxed`: torch's own DistributedDataParallel sums the gradients.

Rows stay exact; the order of addition is DDP's, so bits depend on the number of workers. Notes and buffers
still ride in a small fixed-order exchange. In and out as in `exchange`. Must not know what a leaf is made
of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from god_ray.errors import RecipeError
from god_ray.sync.exchange import FixedOrderExchange, LeafTensors, Reduced

# torch 2.13 renamed the argument; the old name warns there.
_SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in signature(DistributedDataParallel).parameters
)


def wrap(model: nn.Module, device: torch.device, find_unused: bool) -> DistributedDataParallel:
    """DDP around `model`; buffers are exchanged by god_ray, so DDP must not broadcast them."""
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(
        model,
        device_ids=ids,
        find_unused_parameters=find_unused,
        gradient_as_bucket_view=True,
        **{_SYNC_BUFFERS: False},  # type: ignore[arg-type]
    )


class RelaxedExchange:
    """Leaves accumulate into `parameter.grad`; the backward of the last leaf triggers DDP's all-reduce.

    `notes` exchanges the buffers, and for each parameter nothing but whether it has a gradient (`flags`).
    """

    def __init__(
        self, ddp: DistributedDataParallel, parameters: Sequence[Tensor], notes: FixedOrderExchange
    ) -> None:
        self.ddp, self.parameters, self.notes = ddp, parameters, notes
        self.ranges = notes.ranges

    def run(
        self,
        leaf: Callable[[int], LeafTensors | None],
        take_notes: Callable[[Any], None],
        rows: Sequence[int],
    ) -> Reduced:
        # Else the second forward does it, by a collective; in a tail not every worker has a forward.
        self.ddp.reducer._rebuild_buckets()
        for parameter in self.parameters:
            parameter.grad = None
        lo, hi = self.ranges[self.notes.group.rank]
        owned = [lane for lane in range(lo, hi) if rows[lane]]
        everybody = all(any(rows[a:b]) for a, b in self.ranges)
        leaves: dict[int, LeafTensors | None] = {}
        for lane in owned:
            last = lane == owned[-1]
            with nullcontext() if last and everybody else self.ddp.no_sync():
                leaves[lane] = leaf(lane)
        if everybody:
            self._require_reduced()
        present = [
            flag if p.grad is not None else None for p, flag in zip(self.parameters, flags(self.parameters))
        ]
        for lane, tensors in leaves.items():
            leaves[lane] = None if tensors is None else [*present, *tensors[len(present) :]]
        if not everybody:
            self._sum_without_ddp()
        small = self.notes.run(leaves.get, take_notes, rows)
        parts = len(self.ranges) if everybody else 1  # DDP made means of the sums
        summed: list[Tensor] = [p if p.grad is None else p.grad for p in self.parameters]
        reduced = [*summed, *small.tensors[len(present) :]]
        return Reduced(reduced, small.notes, small.said, small.lane_values, partial(self._divide, parts))

    def _divide(self, parts: int, weight: float) -> None:
        torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], parts / weight)

    def _require_reduced(self) -> None:
        """DDP leaves a bucket behind, in silence, when a parameter that it expects gets no gradient."""
        try:
            self.ddp.reducer._check_reducer_finalized()
        except RuntimeError as error:
            raise RecipeError(
                "a parameter that had a gradient in the first step has none in a lane of a later one.",
                str(error).split(".")[0] + ".",
                "use every parameter in every batch, or determinism: bitwise, which does not mind.",
            ) from error

    def _sum_without_ddp(self) -> None:
        """A tail may leave a worker without rows; DDP cannot sit a step out, an all-reduce can."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)


def flags(parameters: Sequence[Tensor]) -> list[Tensor]:
    """In place of gradients, for an exchange that must only know which there are: nothing to send or add."""
    return [torch.empty(0)] * len(parameters)
