"""The digest: one hash over all that the next step depends on.

In: the tensors of model and optimizer by name, the optimizer's scalars as JSON. Out: xxh3_128, as hex digits.
Must not know whether the tensors are live or saved. xxhash lets other threads run while it reads large ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import xxhash
from torch import Tensor

from god_ray.checkpoint.live import IN_TENSORS


def hashed(model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], scalars: Any) -> str:
    hasher = xxhash.xxh3_128()
    for part, tensors in (("model", model), ("optimizer", optimizer)):
        for name in sorted(tensors):
            tensor = tensors[name].detach()
            # dtype and shape also say where the bytes end, so no two states make the same stream
            hasher.update(f"\n{part} {name!r} {tensor.dtype} {list(tensor.shape)}\n".encode())
            if tensor.numel():
                flat = tensor.cpu().contiguous().reshape(-1)
                hasher.update(flat.view(torch.uint8).numpy().data)
    hasher.update(_canonical(scalars).encode())
    return hasher.hexdigest()


def _canonical(scalars: Any) -> str:
    """The optimizer's scalars and options, whatever the order of its parameters."""
    state = {
        f"{name}::{key}": value
        for name, entries in scalars["state"].items()
        for key, value in entries.items()
        if value != IN_TENSORS
    }
    groups = [{**group, "names": sorted(group["names"])} for group in scalars["groups"]]
    return json.dumps([state, sorted(json.dumps(group, sort_keys=True) for group in groups)], sort_keys=True)
