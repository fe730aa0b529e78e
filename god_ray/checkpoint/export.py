"""A checkpoint's weights as one safetensors file, for a strict `model.load_state_dict(load_file(path))`.

In: a store, a step, and how to build the model (for the names in its state dict). Must not know recipes.
Failure shows as CheckpointError: a damaged checkpoint, another model, or a target that cannot be written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from god_ray.checkpoint import tensors
from god_ray.checkpoint.state import restore_model
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import CheckpointError


def export(
    store: CheckpointStore,
    step: int,
    build_model: Callable[[], nn.Module],
    out: Path,
    notes: Mapping[str, str] | None = None,
) -> Path:
    """Write the weights of `step` to `out`, whole or not at all, and return `out`. Verified while reading.

    notes: more to be said in the file's metadata.
    """
    snapshot, _ = store.load(step)
    model = build_model()
    restore_model(snapshot, model)
    # Tied tensors have several names in a state dict; each gets its own copy, as the format wants.
    weights = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        for name, tensor in model.state_dict().items()
    }
    out = Path(out)
    work = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        about = {"format": "pt", "step": str(step), "digest": snapshot.digest(), **(notes or {})}
        tensors.write(weights, work, about)
        os.replace(work, out)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"the weights of step {step} could not be written to {out}",
            str(error),
            "choose a folder that can be written and has room",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # gone by the replacement, or it has no folder
            work.unlink()
    return out
