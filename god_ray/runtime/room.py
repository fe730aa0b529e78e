"""Whether a disk has room for the checkpoints of a run: an estimate, before it is started.

In: the spec, and bytes of a checkpoint. Out: facts, and a sentence if there is too little room. A store by
URI is not asked: it says nothing about room. It is a warning, never a refusal: others may free some, or take
it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from god_ray.checkpoint.state import TrainState
from god_ray.spec import RunSpec
from god_ray.storage.store import is_remote


@dataclass(frozen=True)
class Room:
    """Bytes. `needed`: the most that checkpoints take at once, the one being written among them."""

    checkpoint: int
    needed: int
    free: int | None
    """None: not known."""
    warning: str
    """Empty if there is enough, as far as is known."""


def room(spec: RunSpec, checkpoint_bytes: int) -> Room:
    """One more than are kept, because a save comes before the pruning."""
    num = spec.checkpoint.keep + (spec.checkpoint.keep_best is not None) + 1
    needed, free, warning = num * checkpoint_bytes, _free_bytes(spec.storage), ""
    if free is not None and free < needed:
        warning = (
            f"storage = {spec.storage} has {free:,} bytes free, and checkpoints will need about {needed:,}: "
            f"{num} of {checkpoint_bytes:,}; make room, or lower checkpoint.keep"
        )
    return Room(checkpoint_bytes, needed, free, warning)


def expected_bytes(state: TrainState) -> int:
    """Of a checkpoint, before the optimizer has stepped: Adam and its kin keep two numbers for each that is
    trained, SGD one with momentum and none without.
    """
    optimizer, model = state.optimizer, state.model
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    momentum = any(group.get("momentum") for group in optimizer.param_groups)
    per_number = int(momentum) if type(optimizer).__name__ == "SGD" else 2
    tensors = [*model.parameters(), *model.buffers(), *(per_number * trained)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _free_bytes(storage: str) -> int | None:
    if is_remote(storage):
        return None
    folder = Path(storage)
    return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
