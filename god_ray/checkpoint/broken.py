"""Weights that are NaN or infinite are not saved: they would push good checkpoints out.

In: a model. Out: nothing, or RunFailed that names the first such parameter, the same on every worker. A loss
can be finite where its gradient is not, so this looks at what the optimizer made of it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from god_ray.errors import RunFailed


@torch.no_grad()
def refuse_broken(model: nn.Module, step: int) -> None:
    """Looks at the trained parameters after `step`."""
    broken = [name for name, p in model.named_parameters() if p.requires_grad and not _finite(p)]
    if broken:
        raise RunFailed(
            f"{broken[0]} holds NaN or infinity after step {step}.",
            f"{len(broken)} parameters do; they are not saved, checkpoints from before are intact.",
            "lower the learning rate, set clip_norm, or look for divisions by zero in the loss.",
            agreed=True,
        )


def _finite(tensor: Tensor) -> bool:
    if bool(torch.isfinite(tensor.sum())):  # ten times faster than to ask every element
        return True
    return bool(torch.isfinite(tensor).all())  # a sum of large numbers may overflow
