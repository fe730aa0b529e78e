"""Weights that are NaN or infinite are not saved: they would push good checkpoints out.

In: a snapshot. Out: nothing, or RunFailed that names the first such parameter. A loss can be finite where its
gradient is not, so this looks at what the optimizer made of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from god_ray.checkpoint.state import Snapshot
from god_ray.errors import RunFailed


def refuse_broken(snapshot: Snapshot, step: int) -> None:
    """Looks at the trained parameters that the snapshot holds."""
    described: Any = snapshot.scalars["parameters"]
    trained = [name for name, *_, trains in described if trains and name in snapshot.model]
    broken = [name for name in trained if not _finite(snapshot.model[name])]
    if broken:
        raise RunFailed(
            f"{broken[0]} holds NaN or infinity after step {step}.",
            f"{len(broken)} parameters do; they are not saved, checkpoints from before are intact.",
            "lower the learning rate, set clip_norm, or look for divisions by zero in the loss.",
            final=True,
        )


def _finite(tensor: Tensor) -> bool:
    if bool(torch.isfinite(tensor.sum())):  # ten times faster than to ask every element
        return True
    return bool(torch.isfinite(tensor).all())  # a sum of large numbers may overflow
