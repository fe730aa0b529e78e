"""Buffers (BatchNorm statistics, counters): part of the state, whatever the number of workers.

Every leaf starts from the committed buffers. Changed float buffers become the mean over leaves weighted by
rows, summed along the tree; others come from the first lane; one that no leaf changed keeps its bits. In: a
model. Out: contributions for the exchange, and the committed buffers set after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Buffers:
    """The buffers of `model`, found through their modules, since a forward pass may replace them."""

    def __init__(self, model: nn.Module) -> None:
        places = {}
        for module in model.modules():
            for name, value in module._buffers.items():
                if value is not None and id(value) not in places:
                    places[id(value)] = (module, name)
        self._float = [(m, n) for m, n in places.values() if m._buffers[n].is_floating_point()]  # type: ignore[union-attr]
        self._other = [(m, n) for m, n in places.values() if not m._buffers[n].is_floating_point()]  # type: ignore[union-attr]
        self.templates = _read(self._float)
        self.other_bytes = sum(t.numel() * t.element_size() for t in _read(self._other))
        self.commit()

    def commit(self) -> None:
        """What the modules hold now is the committed state."""
        self._committed = [t.clone() for t in _read(self._float)]
        self._committed_other = [t.clone() for t in _read(self._other)]
        self.changed = np.zeros(len(self._float), np.uint8)
        self.first: Any = np.zeros(self.other_bytes, np.uint8)

    def reset(self) -> None:
        """Before each leaf: the committed values back into the modules."""
        _write(self._float, self._committed)
        _write(self._other, self._committed_other)

    def contribute(self, lane: int, num_rows: int, keep: bool) -> list[Tensor | None]:
        """After a leaf: rows * value of each float buffer. `keep`: note what changed (not in an audit)."""
        now = _read(self._float)
        if keep:
            for i, (value, before) in enumerate(zip(now, self._committed)):
                if not self.changed[i] and not torch.equal(value, before):
                    self.changed[i] = 1
            if lane == 0:
                self.first = _bytes(_read(self._other))
        return [value * num_rows for value in now]

    def settle(self, sums: list[Tensor], changed: Any, first: Any, num_rows: int) -> None:
        """After the exchange: means where a leaf changed a buffer, the first lane's value for the others."""
        for i, committed in enumerate(self._committed):
            if changed[i]:
                torch.div(sums[i], num_rows, out=committed)
        start = 0
        for committed in self._committed_other:
            stop = start + committed.numel() * committed.element_size()
            raw = torch.frombuffer(bytearray(first[start:stop].tobytes()), dtype=torch.uint8)
            if raw.numel():
                committed.copy_(raw.view(committed.dtype).view(committed.shape))
            start = stop
        self.reset()
        self.changed[:] = 0


def _read(places: list[tuple[nn.Module, str]]) -> list[Tensor]:
    return [module._buffers[name].detach() for module, name in places]  # type: ignore[union-attr]


def _write(places: list[tuple[nn.Module, str]], values: list[Tensor]) -> None:
    with torch.no_grad():
        for (module, name), value in zip(places, values):
            module._buffers[name].copy_(value)  # type: ignore[union-attr]


def _bytes(tensors: list[Tensor]) -> Any:
    parts = [t.contiguous().cpu().reshape(-1).view(torch.uint8).numpy() for t in tensors]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)
