"""What a run must compute, written once more from DESIGN's words: plain torch, one process, leaf by leaf.

In: a folder of Parquet files and the sizes. Out: the gradient of every step and the final weights, as arrays.
Uses nothing of god_ray: the order is file order (shuffle: none), the zoo's "plain" model draws nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn import functional

Gradients = list[Tensor]


def train(
    zoo: str, folder: str, batch_size: int, lanes: int, epochs: int, masked: bool
) -> tuple[list[Any], list[Any]]:
    model = load(zoo).plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    table = read(folder)
    x = torch.tensor(np.stack(table["x"].to_numpy()))
    y, mask = (torch.tensor(table[name].to_numpy()) for name in ("y", "mask"))

    # Rows: lane v has every step its share of the batch, from its own contiguous piece of the epoch.
    full_steps, rest = divmod(len(x), batch_size)
    share = [batch_size * (v + 1) // lanes - batch_size * v // lanes for v in range(lanes)]
    tail = [max(0, min(share[v], rest - sum(share[:v]))) for v in range(lanes)]
    assert 1 not in tail, "that case is another rule"
    length = [full_steps * share[v] + tail[v] for v in range(lanes)]
    steps = [[*share]] * full_steps + ([tail] if rest else [])

    seen = []
    for step in [*range(len(steps))] * epochs:
        leaves: list[Gradients | None] = []
        weight = 0.0
        for v, rows in enumerate(steps[step]):
            start = sum(length[:v]) + step * share[v]
            at = slice(start, start + rows)
            if not rows:
                leaves.append(None)
                continue
            for parameter in model.parameters():
                parameter.grad = None
            losses = functional.cross_entropy(model(x[at]), y[at], reduction="none")
            if masked:
                (losses * mask[at]).sum().backward()
                weight += mask[at].sum().item()
            else:
                (losses.mean() * rows).backward()
                weight += rows
            leaves.append([p.grad for p in model.parameters()])
        total = add(leaves)
        assert total is not None
        for parameter, gradient in zip(model.parameters(), total):
            parameter.grad = gradient / weight
        seen.append([p.grad.numpy().copy() for p in model.parameters()])
        optimizer.step()
    return seen, [p.detach().numpy() for p in model.parameters()]


def add(leaves: list[Gradients | None]) -> Gradients | None:
    """RFC 6962's tree: the largest power of two below the number of leaves goes left. None: absent."""
    if len(leaves) == 1:
        return leaves[0]
    middle = 1
    while 2 * middle < len(leaves):
        middle *= 2
    left, right = add(leaves[:middle]), add(leaves[middle:])
    if left is None or right is None:
        return left or right
    return [a + b for a, b in zip(left, right)]


def count_right(zoo: str, model: str, weights: list[str], folder: str) -> int:
    """How many rows of the folder the saved model gets right, in one go. `weights`: its files."""
    from safetensors.torch import load_file

    module = load(zoo)
    network = module.MODELS[model]()
    network.load_state_dict({name: t for path in weights for name, t in load_file(path).items()})
    table = read(folder)
    logits = network.eval()(torch.tensor(np.stack(table["x"].to_numpy())))
    return int((logits.argmax(dim=1) == torch.tensor(table["y"].to_numpy())).sum())


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("reference_zoo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(folder: str) -> Any:
    return pq.read_table([str(path) for path in sorted(Path(folder).glob("*.parquet"))])
