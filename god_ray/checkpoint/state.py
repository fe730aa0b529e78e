"""The training state as tensors by name and JSON: out (`capture`), back in (`restore`), hashed (`digest`).

In: a model, its optimizer and schedule, the loop's scalars. Out: a `Snapshot` sharing no memory with them, or
a `View` that does. Must not know where snapshots are kept, nor which worker this is. No random state: each
leaf is seeded anew. Failure shows as RecipeError (a part has no exact form without pickle, or is changed by
others than the optimizer) or CheckpointError (another model).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from god_ray.checkpoint import fit, live
from god_ray.checkpoint.codec import JSON, decode, encode
from god_ray.checkpoint.hashing import hashed
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
        return hashed(self.model, self.optimizer, self.scalars["optimizer"])


@dataclass(frozen=True)
class View:
    """A `TrainState` at a step boundary, for another thread to read while forward and backward passes go on.

    Parameters and the optimizer's tensors are the live ones: nothing but the optimizer may change them, so
    they are those of the boundary until it steps. Buffers are copies, since forward passes change them.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    scalars: dict[str, JSON]
    versions: list[tuple[str, Tensor, int]]
    """Of the live ones: torch counts how often a tensor was changed in place."""

    def digest(self) -> str:
        return hashed(self.model, self.optimizer, self.scalars["optimizer"])

    def copy(self, share: Share = WHOLE, into: Snapshot | None = None) -> Snapshot:
        """The share's tensors, and all scalars. `into`: a snapshot that nobody needs any more, whose memory
        is used again.
        """
        old = into or Snapshot({}, {}, {})
        model, optimizer = self._of(share)
        return Snapshot(
            {name: _copy(tensor, old.model.get(name)) for name, tensor in model.items()},
            {name: _copy(tensor, old.optimizer.get(name)) for name, tensor in optimizer.items()},
            self.scalars,
        )

    def room(self, share: Share) -> Snapshot:
        """Memory to `copy` into, written to once: new memory costs more than the copy. Reads no tensor."""
        model, optimizer = (
            {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in part.items()}
            for part in self._of(share)
        )
        return Snapshot(model, optimizer, {})

    def refuse_changed(self) -> None:
        """RecipeError naming a tensor that something else than the optimizer has changed."""
        changed = [name for name, tensor, version in self.versions if _version(tensor) != version]
        if changed:
            raise RecipeError(
                f"{changed[0]} was changed in place by a forward or backward pass",
                f"{len(changed)} of {len(self.versions)} parameters and optimizer tensors were, after their "
                "step had ended; each worker would change its own, by the rows of its lanes",
                "let only the optimizer change parameters (no nn.Embedding(max_norm=...), no update inside "
                "loss); what forward passes change is kept in buffers (register_buffer)",
                entry=changed[0],
            )

    def _of(self, share: Share) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors of model and optimizer that are the share's."""
        parts = {"model": self.model, "optimizer": self.optimizer}
        sizes = {
            f"{part} {name}": tensor.numel() * tensor.element_size()
            for part, tensors in parts.items()
            for name, tensor in tensors.items()
        }
        mine = share.of(sizes)
        model, optimizer = (
            {name: tensor for name, tensor in tensors.items() if f"{part} {name}" in mine}
            for part, tensors in parts.items()
        )
        return model, optimizer


def view(state: TrainState) -> View:
    """`state` as it is now; costs no more than its buffers. RecipeError naming the entry that a checkpoint
    cannot hold.
    """
    live.refuse_model(state.model)
    model = live.model_tensors(state.model)
    optimizer, scalars = live.optimizer_parts(state.model, state.optimizer)
    for name, tensor in (*model.items(), *optimizer.items()):
        _refuse_odd(name, tensor)
    buffers = {name: tensor.detach().clone() for name, tensor in state.model.named_buffers()}
    still = {**{name: tensor for name, tensor in model.items() if name not in buffers}, **optimizer}
    return View(
        model={**model, **buffers},
        optimizer=optimizer,
        scalars={
            **live.model_shape(state.model),
            "optimizer": scalars,
            "schedule": live.schedule_parts(state.schedule),
            "extra": encode(state.extra, "extra"),
        },
        versions=[(name, tensor, _version(tensor)) for name, tensor in still.items()],
    )


def capture(state: TrainState, share: Share = WHOLE) -> Snapshot:
    """A copy of `state`; of its tensors, only those that are the share's. RecipeError as `view`."""
    return view(state).copy(share)


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
    return hashed(live.model_tensors(model), tensors, scalars)


def _refuse_odd(name: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise RecipeError(
            f"{name} is a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}",
            "checkpoints hold ordinary dense tensors",
            "use a dense, materialised tensor, or keep it out of the model",
            entry=name,
        )


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _copy(tensor: Tensor, old: Tensor | None) -> Tensor:
    if old is None or old.shape != tensor.shape or old.dtype != tensor.dtype:
        old = torch.empty(tensor.shape, dtype=tensor.dtype)
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
