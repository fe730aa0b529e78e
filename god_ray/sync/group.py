"""The processes of one generation, as the rest of `sync` sees them.

`Solo` is a group of one without torch.distributed (`--debug`, one worker); `TorchGroup` wraps the process
group that the runtime has formed. Bytes and tensors go in, the same on every worker come out, or a
RuntimeError when a peer is gone. Must not know what the messages mean.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renamed the collective; the old name warns there.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class Group(Protocol):
    rank: int
    size: int

    def all_gather(self, received: Tensor, sent: Tensor) -> None:
        """received[size * len(sent)] <- every worker's `sent`, in rank order."""

    def all_to_all(
        self, received: Tensor, sent: Tensor, received_sizes: list[int], sent_sizes: list[int]
    ) -> None:
        """Part r of `sent` goes to rank r; sizes count elements."""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every worker's `data`, in rank order."""

    def barrier(self) -> None:
        """Returns when every worker has called it."""


class Solo:
    rank, size = 0, 1

    def all_gather(self, received: Tensor, sent: Tensor) -> None:
        received.copy_(sent)

    def all_to_all(
        self, received: Tensor, sent: Tensor, received_sizes: list[int], sent_sizes: list[int]
    ) -> None:
        received.copy_(sent)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return [data]

    def barrier(self) -> None:
        return None


class TorchGroup:
    def __init__(self, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = device

    def all_gather(self, received: Tensor, sent: Tensor) -> None:
        _all_gather(received, sent)

    def all_to_all(
        self, received: Tensor, sent: Tensor, received_sizes: list[int], sent_sizes: list[int]
    ) -> None:
        dist.all_to_all_single(received, sent, received_sizes, sent_sizes)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        sizes = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        _all_gather(sizes, torch.tensor([len(data)], device=self.device))
        width = int(sizes.max())
        padded = torch.frombuffer(bytearray(data.ljust(width, b"\0")), dtype=torch.uint8).to(self.device)
        received = torch.empty(self.size * width, dtype=torch.uint8, device=self.device)
        _all_gather(received, padded)
        rows = received.cpu().numpy().reshape(self.size, width)
        return [rows[rank, : int(sizes[rank])].tobytes() for rank in range(self.size)]

    def barrier(self) -> None:
        self.gather_bytes(b"x")
