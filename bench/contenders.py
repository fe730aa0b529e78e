"""The training loops that are compared, each stepping only when its gate lets it.

`loader` and `memory` are what a user of torchrun would write; `god_ray_loop` is god_ray's own loop with
its real ports (ledger, background checkpoints, commands), assembled as a worker under Ray assembles it.
In: a job (plain data). Out: nothing; the gate measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow.parquet as pq
import recipe
import torch
from measure import BATCH_SIZE
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from turns import Gate

from god_ray.loop.request import Request


def _tensors(path: str) -> tuple[Tensor, Tensor]:
    data = pq.read_table(path).combine_chunks()
    x = torch.tensor(data["x"].combine_chunks().flatten().to_numpy()).view(data.num_rows, -1)
    return x, torch.tensor(data["y"].to_numpy())


Batches = Iterator[Sequence[Tensor]]


def _train(gate: Gate, batches: Batches, job: Mapping[str, Any]) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(recipe.network(job["widths"]))
    optimizer = recipe.optimizer(model.parameters(), job.get("fused"))
    while gate.wait():
        x, y = next(batches)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def loader(gate: Gate, rank: int, size: int, job: Mapping[str, Any]) -> None:
    """DistributedDataParallel fed by a DataLoader with its defaults over a TensorDataset."""
    dataset = TensorDataset(*_tensors(job["data"]))
    sampler = DistributedSampler(dataset, num_replicas=size, rank=rank, shuffle=True)
    batches = DataLoader(dataset, batch_size=BATCH_SIZE // size, sampler=sampler)

    def endless() -> Batches:
        for epoch in count():
            sampler.set_epoch(epoch)
            yield from batches

    _train(gate, endless(), job)


def memory(gate: Gate, rank: int, size: int, job: Mapping[str, Any]) -> None:
    """DistributedDataParallel; the whole set as two tensors, each batch indexed out of them."""
    x, y = _tensors(job["data"])
    each = BATCH_SIZE // size

    def endless() -> Batches:
        for epoch in count():
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
            for start in range(0, len(x), BATCH_SIZE):
                index = order[start + rank * each : start + (rank + 1) * each]
                yield x[index], y[index]

    _train(gate, endless(), job)


class GatedControl:
    """god_ray's Control port: asks for commands as always, but only when it is this contender's turn."""

    def __init__(self, gate: Gate, inner: Any) -> None:
        self.gate, self.inner = gate, inner

    def poll(self) -> Request | None:
        return self.inner.poll() if self.gate.wait() else Request("stop")


def god_ray_loop(gate: Gate, rank: int, size: int, job: Mapping[str, Any]) -> None:
    """A worker as Ray starts it, but for two ports: commands are gated, Ray Train is not told."""
    from god_ray.runtime import worker
    from god_ray.runtime.writer import NoReporter
    from god_ray.sync.group import TorchGroup

    real_ports = worker._ports

    def ports(*args: Any) -> Any:
        real = real_ports(*args)
        return replace(real, control=GatedControl(gate, real.control), reporter=NoReporter())

    worker._ports = ports
    device = torch.device("cpu")
    group = TorchGroup(device)
    local = worker._build_together(job["assignment"], device, group)
    worker._run(local, job["run"], group)
