"""The fixed-order exchange: the same additions in the same order, whatever the number of workers.

A worker folds the leaves of its lanes into a few whole subtrees of the fixed tree over all lanes; workers
exchange subtree sums in one collective and each finishes the tree. Small vectors travel whole (all-gather),
large ones by slices (all-to-all, then an all-gather of finished slices). In: a function that computes one
leaf. Out: sums over all lanes and every worker's notes. Must not know what a leaf is made of. A dead peer
shows as RuntimeError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from god_ray.plan.tree import subtrees
from god_ray.sync.fold import Node, fold
from god_ray.sync.group import Group
from god_ray.sync.layout import Layout
from god_ray.sync.notes import Said, at, notes_dtype

LeafTensors = list[Tensor | None]
# Measured on two cores: below this an all-gather of whole vectors is the faster, above it slices are.
WHOLE_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Reduced:
    """`tensors`: sums over all lanes; the next exchange overwrites them. `notes`: a record per worker.

    divide: makes means of the gradients' sums, in place. said: the single numbers of `notes`, by rank.
    """

    tensors: list[Tensor]
    notes: Any
    said: list[Said]
    lane_values: Callable[[str], list[float]]
    divide: Callable[[float], None]


class FixedOrderExchange:
    """Leaves shaped like `templates`; worker r owns the lanes [ranges[r][0], ranges[r][1])."""

    def __init__(
        self,
        group: Group,
        templates: Sequence[Tensor],
        ranges: list[tuple[int, int]],
        num_params: int,
        first_bytes: int,
        device: torch.device,
    ) -> None:
        self.group, self.ranges, self.num_params = group, ranges, num_params
        self.lanes = ranges[-1][1]
        self.nodes: list[list[Node]] = [subtrees(lo, hi, self.lanes) for lo, hi in ranges]
        num_bytes = sum(t.numel() * t.element_size() for t in templates)
        dtypes = {t.dtype for t in templates}
        most = max(len(nodes) for nodes in self.nodes)
        # Between two workers with one subtree each, whole vectors are the same bytes in one phase, not two.
        worth = group.size > 2 or (group.size == 2 and most > 1)
        self.sliced = worth and len(dtypes) == 1 and num_bytes > WHOLE_MAX_BYTES
        self.layout = Layout(list(templates), group.size if self.sliced else 1)
        max_lanes = max(hi - lo for lo, hi in ranges)
        self.record = notes_dtype(max_lanes, num_params, len(templates) - num_params, first_bytes)
        self.notes_bytes = -(-self.record.itemsize // 16) * 16
        self._allocate(device)

    def _allocate(self, device: torch.device) -> None:
        part, most = self.layout.slice_bytes, max(len(nodes) for nodes in self.nodes)
        slots = [len(nodes) if self.sliced else most for nodes in self.nodes]
        self.blocks = [count * part + self.notes_bytes for count in slots]
        self.notes_at = [count * part for count in slots]
        rank = self.group.rank

        def zeros(num_bytes: int) -> Tensor:
            return torch.zeros(num_bytes, dtype=torch.uint8, device=device)

        self.received = zeros(sum(self.blocks))
        self.starts = [sum(self.blocks[:r]) for r in range(self.group.size)]
        own = self.received[self.starts[rank] : self.starts[rank] + self.blocks[rank]]
        self.sent = zeros(self.layout.num_slices * self.blocks[rank]) if self.sliced else own
        self.total = zeros(self.layout.num_slices * part)
        self.slice_sum = self.total[rank * part : (rank + 1) * part] if self.sliced else self.total
        self.gradients = self.layout.leading(self.total, self.num_params)
        self.totals = self.layout.views(self.total)
        self.slice_typed = self.layout.typed(self.slice_sum)
        self.located = {
            node: self.layout.typed(self.received[start + i * part : start + (i + 1) * part])
            for start, nodes in zip(self.starts, self.nodes)
            for i, node in enumerate(nodes)
        }
        self.targets = [self._slot_views(i) for i in range(len(self.nodes[rank]))]
        self._allocate_notes(device)

    def _allocate_notes(self, device: torch.device) -> None:
        """On CPU the notes lie inside the messages; on an accelerator they are staged on the host."""
        self.staged = device.type != "cpu"
        self.note_parts: list[Any] | None = None
        rank, size = self.group.rank, self.group.size
        if self.staged:
            self.host_sent = torch.zeros(self.notes_bytes, dtype=torch.uint8, pin_memory=True)
            self.host_received = torch.zeros(size * self.notes_bytes, dtype=torch.uint8, pin_memory=True)
            self.notes = at(self.host_sent.numpy(), self.record, 0, 1, self.notes_bytes)
            self.all_notes = at(self.host_received.numpy(), self.record, 0, size, self.notes_bytes)
            return
        self.notes = at(self.sent.numpy(), self.record, self.notes_at[rank], 1, self.record.itemsize)
        message = self.received.numpy()
        if len(set(self.blocks)) == 1:
            self.all_notes = at(message, self.record, self.notes_at[0], size, self.blocks[0])
        else:
            self.note_parts = [
                at(message, self.record, self.starts[r] + self.notes_at[r], 1, self.record.itemsize)
                for r in range(size)
            ]

    def _slot_views(self, slot: int) -> list[tuple[int, int, int, Tensor]]:
        """Where each piece of a leaf's tensors goes inside `sent`: (tensor, start, stop, view)."""
        part, block = self.layout.slice_bytes, self.blocks[self.group.rank]
        views = []
        for pieces, template in zip(self.layout.pieces, self.layout.templates):
            for p in pieces:
                lo = p.slice * block + slot * part + p.offset
                hi = lo + (p.stop - p.start) * template.element_size()
                view = self.sent[lo:hi].view(template.dtype)
                whole = p.stop - p.start == template.numel()
                views.append((p.index, p.start, p.stop, view.view(template.shape) if whole else view))
        return views

    def run(
        self,
        leaf: Callable[[int], LeafTensors | None],
        take_notes: Callable[[Any], None],
        rows: Sequence[int],
    ) -> Reduced:
        """Compute the owned leaves, exchange, finish the tree. `rows[v]` == 0 marks an absent lane."""
        present = [False] * self.num_params

        def known(node: Node) -> tuple[bool, LeafTensors | None]:
            if node[1] - node[0] > 1:
                return False, None
            tensors = leaf(node[0])
            if tensors is not None:
                for i in range(self.num_params):
                    if tensors[i] is not None:
                        present[i] = True
            return True, tensors

        for slot, node in enumerate(self.nodes[self.group.rank]):
            self._pack(slot, fold(node, known, _add_leaves))
        record = self.notes[0]
        record["present"] = present
        take_notes(record)
        self._send()
        self._finish(rows)
        said = [Said(*words) for words in self.all_notes["said"].tolist()]
        return Reduced(self.totals, self.all_notes, said, self._lane_values, self._divide)

    def _divide(self, weight: float) -> None:
        for flat in self.gradients:
            flat.div_(weight)

    def _pack(self, slot: int, tensors: LeafTensors | None) -> None:
        if tensors is None:
            return
        targets, sources = [], []
        for index, start, stop, view in self.targets[slot]:
            tensor = tensors[index]
            if tensor is None:
                view.zero_()
                continue
            targets.append(view)
            sources.append(tensor if view.shape == tensor.shape else tensor.reshape(-1)[start:stop])
        if targets:
            torch._foreach_copy_(targets, sources)

    def _send(self) -> None:
        rank, block, at_byte = self.group.rank, self.blocks[self.group.rank], self.notes_at[self.group.rank]
        if self.staged:
            self.sent[at_byte : at_byte + self.notes_bytes].copy_(self.host_sent, non_blocking=True)
        if self.sliced:
            note = self.sent[at_byte : at_byte + self.notes_bytes]
            for other in range(1, self.group.size):
                self.sent[other * block + at_byte : other * block + at_byte + self.notes_bytes].copy_(note)
            self.group.all_to_all(
                self.received, self.sent, self.blocks, [self.blocks[rank]] * self.group.size
            )
        else:
            self.group.all_gather(self.received, self.sent)
        if self.staged:
            for r, start in enumerate(self.starts):
                lo = start + self.notes_at[r]
                self.host_received[r * self.notes_bytes : (r + 1) * self.notes_bytes].copy_(
                    self.received[lo : lo + self.notes_bytes]
                )
        elif self.note_parts is not None:
            self.all_notes = _joined(self.note_parts, self.record)

    def _finish(self, rows: Sequence[int]) -> None:
        root = (0, self.lanes)

        def known(node: Node) -> tuple[bool, list[Tensor] | None]:
            here = self.located.get(node)
            return here is not None, here if here is not None and any(rows[node[0] : node[1]]) else None

        def merge(node: Node, left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
            target = self.slice_typed if node == root else left
            for out, a, b in zip(target, left, right):
                torch.add(a, b, out=out)
            return target

        result = fold(root, known, merge)
        if result is not None and result is not self.slice_typed:
            for out, value in zip(self.slice_typed, result):
                out.copy_(value)
        if self.sliced:
            self.group.all_gather(self.total, self.slice_sum)

    def _lane_values(self, field: str) -> list[float]:
        """A per-lane field of the notes, over all lanes in order."""
        values: list[float] = []
        for (lo, hi), of_worker in zip(self.ranges, self.all_notes[field].tolist()):
            values.extend(of_worker[: hi - lo])
        return values


def _joined(parts: list[Any], record: Any) -> Any:
    return np.concatenate(parts).astype(record, copy=False)


def _add_leaves(_node: Node, left: LeafTensors, right: LeafTensors) -> LeafTensors:
    """left + right in place. A missing gradient counts as +0; missing in both, it stays None."""
    if all(t is not None for t in left) and all(t is not None for t in right):
        torch._foreach_add_(left, right)  # type: ignore[arg-type]
        return left
    return [_add_one(a, b) for a, b in zip(left, right)]


def _add_one(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None:
        return None if b is None else b + 0
    return a + 0 if b is None else a.add_(b)
