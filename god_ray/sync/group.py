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
        """received[size * len(sent)] <- every worker's `sent`, in rank order.

        `sent` may be the worker's own block of `received`: then nothing is copied.
        """

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
        if received.data_ptr() != sent.data_ptr():
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
        if self.size == 2 and self.device.type == "cpu":
            self._swap(received, sent)
        else:
            _all_gather(received, sent)

    def _swap(self, received: Tensor, sent: Tensor) -> None:
        """An all-gather between two, as an uneven all-to-all: two thirds of the cost of gloo's all-gather."""
        blocks = received.view(2, len(sent))
        own, peer = blocks[self.rank], blocks[1 - self.rank]
        if own.data_ptr() != sent.data_ptr():
            own.copy_(sent)
        splits = [0, len(sent)] if self.rank == 0 else [len(sent), 0]
        dist.all_to_all_single(peer, sent, splits, splits)

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
