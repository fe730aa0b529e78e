"""The training state as tensors by name and JSON: out (`capture`), back in (`restore`), hashed (`digest`).

In: a model, its optimizer and schedule, the loop's scalars. Out: a `Snapshot` sharing no memory with them.
Must not know where snapshots are kept, nor which worker this is. No random state: each leaf is seeded anew.
Failure shows as RecipeError (a part has no exact form without pickle) or CheckpointError (another model).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from god_ray.checkpoint import fit, live
from god_ray.checkpoint.codec import JSON, decode, encode
from god_ray.checkpoint.share import WHOLE, Share
from god_ray.errors import RecipeError


@dataclass
class TrainState:
    """All that the next step depends on, live. `model` is the bare module: not compiled, not wrapped by DDP.

    extra: the loop's own scalars (cursor, counters), anything that `codec.encode` takes.
    """

    model: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        live.refuse_model(self.model)
        live.refuse_schedule(self.schedule, self.optimizer)
        live.optimizer_names(self.model, self.optimizer)


@dataclass(frozen=True)
class Snapshot:
    """A `TrainState` on the CPU, detached: for another thread, or to keep while training goes on.

    It may hold a share of the tensors only; the scalars are always whole.

    model: parameters and buffers by name, `persistent=False` ones too. optimizer: tensors, "parameter::key".
    scalars: strict JSON: parameters, buffers, tied, optimizer {class, groups, state}, schedule, extra.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    scalars: dict[str, JSON]

    @property
    def num_bytes(self) -> int:
        parts = (*self.model.values(), *self.optimizer.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in parts)

    def digest(self) -> str:
        """What `digest` says of a model and an optimizer in this state."""
        return _hash(self.model, self.optimizer, self.scalars["optimizer"])


def capture(state: TrainState, share: Share = WHOLE, into: Snapshot | None = None) -> Snapshot:
    """A copy of `state`; of its tensors, only those that are the share's.

    `into`: a snapshot that nobody needs any more, whose memory is used again. RecipeError naming the entry
    that has no exact form without pickle.
    """
    live.refuse_model(state.model)
    model = live.model_tensors(state.model)
    optimizer, scalars = live.optimizer_parts(state.model, state.optimizer)
    sizes = {f"model {name}": tensor.numel() * tensor.element_size() for name, tensor in model.items()}
    sizes |= {
        f"optimizer {name}": tensor.numel() * tensor.element_size() for name, tensor in optimizer.items()
    }
    mine, old = share.of(sizes), into or Snapshot({}, {}, {})
    return Snapshot(
        model={n: _copy(n, t, old.model.get(n)) for n, t in model.items() if f"model {n}" in mine},
        optimizer={
            n: _copy(n, t, old.optimizer.get(n)) for n, t in optimizer.items() if f"optimizer {n}" in mine
        },
        scalars={
            **live.model_shape(state.model),
            "optimizer": scalars,
            "schedule": live.schedule_parts(state.schedule),
            "extra": encode(state.extra, "extra"),
        },
    )


def restore(snapshot: Snapshot, state: TrainState) -> None:
    """Put `snapshot` into `state`, in place: parameters keep their identity, device and memory layout.

    Nothing is touched unless all of it fits. CheckpointError with both lists if names, shapes, dtypes, order,
    ties, the frozen set, the kind of optimizer or schedule, or the parameter groups changed.
    """
    fit.refuse_other_model(snapshot.scalars, state.model)
    fit.refuse_other_optimizer(snapshot.scalars, state.model, state.optimizer)
    fit.refuse_other_schedule(snapshot.scalars, state.schedule)
    _copy_model(snapshot, state.model)
    if state.schedule is not None:
        schedule: Any = snapshot.scalars["schedule"]
        state.schedule.load_state_dict(decode(schedule["state"]))
    _restore_optimizer(snapshot, state)  # last: building or loading a schedule may have set a learning rate
    extra: dict[str, Any] = decode(snapshot.scalars["extra"])
    state.extra.clear()
    state.extra.update(extra)


def restore_model(snapshot: Snapshot, model: nn.Module) -> None:
    """Parameters and buffers only, as strict as `restore`."""
    fit.refuse_other_model(snapshot.scalars, model)
    _copy_model(snapshot, model)


def digest(model: nn.Module, optimizer: Optimizer) -> str:
    """xxh3_128 over names, dtypes, shapes and bytes of parameters, buffers and optimizer tensors, and over
    the optimizer's scalars and options, by name: device, strides and order of definition are not in it.

    Take it at a step boundary, after the schedule has stepped: the learning rates are part of it.
    """
    tensors, scalars = live.optimizer_parts(model, optimizer)
    return _hash(live.model_tensors(model), tensors, scalars)


def _copy(name: str, tensor: Tensor, old: Tensor | None) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise RecipeError(
            f"{name} is a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}",
            "checkpoints hold ordinary dense tensors",
            "use a dense, materialised tensor, or keep it out of the model",
            entry=name,
        )
    if old is None or old.shape != tensor.shape or old.dtype != tensor.dtype:
        old = torch.empty(tensor.shape, dtype=tensor.dtype)  # new memory costs more than the copy
    # One copy into contiguous memory, whatever device and strides (`.cpu().clone()` may copy twice).
    return old.copy_(tensor.detach())


@torch.no_grad()
def _copy_model(snapshot: Snapshot, model: nn.Module) -> None:
    for name, tensor in live.model_tensors(model).items():
        tensor.copy_(snapshot.model[name])


def _restore_optimizer(snapshot: Snapshot, state: TrainState) -> None:
    saved: Any = snapshot.scalars["optimizer"]
    parameters = dict(state.model.named_parameters())
    group_of = {id(p): group for group in state.optimizer.param_groups for p in group["params"]}
    state.optimizer.state.clear()
    for name, entries in saved["state"].items():
        parameter = parameters[name]
        group = group_of.get(id(parameter), {})
        state.optimizer.state[parameter] = {
            key: _placed(snapshot.optimizer[f"{name}::{key}"], key, parameter, group)
            if value == live.IN_TENSORS
            else decode(value)
            for key, value in entries.items()
        }
    for group, kept in zip(state.optimizer.param_groups, saved["groups"], strict=True):
        for key, value in kept["options"].items():
            _set_option(group, key, decode(value))


def _set_option(group: dict[str, Any], key: str, value: Any) -> None:
    now = group.get(key)
    if isinstance(value, Tensor) and isinstance(now, Tensor) and now.shape == value.shape:
        now.copy_(value)  # the same object on its device: a captured or compiled step may hold on to it
    else:
        group[key] = value


def _placed(tensor: Tensor, key: str, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    """A copy where torch keeps it: `step` on the CPU unless fused or capturable, others by the parameter."""
    beside = key != "step" or group.get("fused") or group.get("capturable")
    device = parameter.device if beside else torch.device("cpu")
    if tensor.shape == parameter.shape:  # in the parameter's own memory layout, as zeros_like makes it
        return torch.empty_like(parameter, dtype=tensor.dtype, device=device, requires_grad=False).copy_(
            tensor
        )
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device).copy_(tensor)


def _hash(model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], scalars: Any) -> str:
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
        if value != live.IN_TENSORS
    }
    groups = [{**group, "names": sorted(group["names"])} for group in scalars["groups"]]
    return json.dumps([state, sorted(json.dumps(group, sort_keys=True) for group in groups)], sort_keys=True)
