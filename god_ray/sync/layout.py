"""Where the tensors of a leaf and the notes of a worker lie inside one message.

A message is bytes: for each slice of the flat vector, the slice of each of the worker's subtrees, then the
notes. With one slice it suits an all-gather, with one slice per worker an all-to-all; the sums are the
same. Tensors of one dtype lie together, so that a sum is one vector operation. Must not know what is sent,
nor how.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ALIGN_BYTES = 16


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of flattened tensor `index`, at byte `offset` inside slice `slice`."""

    index: int
    start: int
    stop: int
    slice: int
    offset: int


class Layout:
    """The flat vector: `tensors` (only shape and dtype count) cut into `num_slices` slices."""

    def __init__(self, tensors: list[Tensor], num_slices: int) -> None:
        self.templates = tensors
        self.num_slices = num_slices
        order = sorted(range(len(tensors)), key=lambda i: (str(tensors[i].dtype), i))
        self.offsets = [0] * len(tensors)
        self.sections: list[tuple[torch.dtype, int, int]] = []
        end = 0
        for i in order:
            dtype, num_bytes = tensors[i].dtype, tensors[i].numel() * tensors[i].element_size()
            if self.sections and self.sections[-1][0] == dtype:
                self.offsets[i] = end
                self.sections[-1] = (dtype, self.sections[-1][1], end + num_bytes)
            else:
                end = _aligned(end)
                self.offsets[i] = end
                self.sections.append((dtype, end, end + num_bytes))
            end += num_bytes
        self.slice_bytes = _aligned(-(-end // num_slices))
        if num_slices > 1:
            if len(self.sections) != 1:
                raise ValueError("only a vector of one dtype can be cut into slices")
            self.sections = [(self.sections[0][0], 0, self.slice_bytes)]
        self.pieces = [self._pieces(i) for i in range(len(tensors))]

    def _pieces(self, index: int) -> list[Piece]:
        tensor = self.templates[index]
        size, at, start = tensor.element_size(), self.offsets[index], 0
        pieces = []
        while start < tensor.numel():
            number, offset = divmod(at + start * size, self.slice_bytes)
            stop = min(tensor.numel(), start + (self.slice_bytes - offset) // size)
            pieces.append(Piece(index, start, stop, number, offset))
            start = stop
        return pieces

    def views(self, flat: Tensor) -> list[Tensor]:
        """The tensors inside a whole flat vector, uint8[num_slices * slice_bytes]."""
        result = []
        for i, template in enumerate(self.templates):
            end = self.offsets[i] + template.numel() * template.element_size()
            result.append(flat[self.offsets[i] : end].view(template.dtype).view(template.shape))
        return result

    def leading(self, flat: Tensor, count: int) -> list[Tensor]:
        """The first `count` tensors inside a whole flat vector, as one vector per dtype."""
        spans: dict[torch.dtype, tuple[int, int]] = {}
        for template, offset in zip(self.templates[:count], self.offsets):
            end = offset + template.numel() * template.element_size()
            lo, hi = spans.get(template.dtype, (offset, end))
            spans[template.dtype] = (min(lo, offset), max(hi, end))
        return [flat[lo:hi].view(dtype) for dtype, (lo, hi) in spans.items()]

    def typed(self, part: Tensor) -> list[Tensor]:
        """One slice (uint8[slice_bytes]) as one vector per dtype."""
        return [part[start:stop].view(dtype) for dtype, start, stop in self.sections]
