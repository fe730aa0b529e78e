"""Model, optimizer and schedule read as tensors by name and JSON by entry, without copying anything.

Answers: what exactly does the next step depend on, and is there anything a checkpoint could not hold?
Must not know snapshots, files or hashes. Failure shows as RecipeError naming the entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from god_ray.checkpoint.codec import JSON, encode
from god_ray.errors import RecipeError

# Which kernel computes the update, not what the update is: the numeric fingerprint pins these.
_IMPLEMENTATION = frozenset({"params", "param_names", "foreach", "fused", "capturable"})
IN_TENSORS: JSON = {"$": "in tensors"}


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, then buffers; each tied tensor once, under its first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def model_shape(model: nn.Module) -> dict[str, JSON]:
    """What must be unchanged for a snapshot to fit: {parameters, buffers, tied}, in order of definition."""
    seen: dict[int, str] = {}
    tied: dict[str, JSON] = {}
    for name, tensor in _all_names(model):
        first = seen.setdefault(id(tensor), name)
        if first != name:
            tied[name] = first
    return {
        "parameters": [[*_description(name, p), p.requires_grad] for name, p in model.named_parameters()],
        "buffers": [_description(name, b) for name, b in model.named_buffers()],
        "tied": tied,
    }


def _all_names(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _description(name: str, tensor: Tensor) -> list[JSON]:
    return [name, str(tensor.dtype).removeprefix("torch."), [*tensor.shape]]


def optimizer_names(model: nn.Module, optimizer: Optimizer) -> dict[int, str]:
    """Name by id for every parameter of the model. RecipeError if the optimizer holds any other tensor."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                raise RecipeError(
                    f"the optimizer's group {index} holds a parameter (number {position}, shape "
                    f"{tuple(parameter.shape)}) that is not one of the model's",
                    "optimizer state is kept by parameter name, and this one has none",
                    "build the optimizer from the finished model's parameters, after its last change",
                )
    return names


def optimizer_parts(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, JSON]]:
    """The optimizer's tensors as "parameter::key", and the rest of it as JSON {class, groups, state}."""
    names = optimizer_names(model, optimizer)
    tensors: dict[str, Tensor] = {}
    state: dict[str, JSON] = {}
    for parameter, entries in optimizer.state.items():
        name = names.get(id(parameter))
        if name is None:
            raise RecipeError(
                f"the optimizer keeps state under {str(parameter)[:80]!r}",
                "optimizer state is kept by parameter name, and this is not a parameter of the model",
                "keep the optimizer's own state per parameter, or in param_groups",
            )
        kept: dict[str, JSON] = {}
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{name}::{key}"] = value
                kept[key] = IN_TENSORS
            else:
                kept[key] = encode(value, f"optimizer.state[{name}].{key}")
        state[name] = kept
    groups: list[JSON] = [
        {"names": [names[id(p)] for p in group["params"]], "options": _options(index, group)}
        for index, group in enumerate(optimizer.param_groups)
    ]
    return tensors, {"class": type(optimizer).__qualname__, "groups": groups, "state": state}


def _options(index: int, group: dict[str, Any]) -> dict[str, JSON]:
    return {
        key: encode(value, f"optimizer.param_groups[{index}].{key}")
        for key, value in group.items()
        if key not in _IMPLEMENTATION
    }


def schedule_parts(schedule: LRScheduler | None) -> JSON:
    """{class, state} or None."""
    if schedule is None:
        return None
    return {"class": schedule_kind(schedule), "state": encode(schedule.state_dict(), "schedule")}


def schedule_kind(schedule: LRScheduler | None) -> str:
    """Its class with the classes inside: "SequentialLR(LinearLR, CosineAnnealingLR)"."""
    if schedule is None:
        return "none"
    name, inner = type(schedule).__qualname__, getattr(schedule, "_schedulers", ())
    return f"{name}({', '.join(schedule_kind(part) for part in inner)})" if inner else name


def refuse_schedule(schedule: LRScheduler | None, optimizer: Optimizer) -> None:
    """RecipeError for a schedule that one call per optimizer step cannot drive."""
    if schedule is None:
        return
    if isinstance(schedule, ReduceLROnPlateau):
        raise RecipeError(
            "schedule = ReduceLROnPlateau cannot be used",
            "it needs a metric; god_ray steps the schedule once per optimizer step, without one",
            "use a schedule of the step alone (LambdaLR, OneCycleLR, SequentialLR ...), or stop_when",
        )
    if schedule.optimizer is not optimizer:
        raise RecipeError(
            f"schedule = {type(schedule).__qualname__} drives another optimizer than the recipe's",
            "its learning rates would never reach the training",
            "build the schedule from the optimizer that the recipe returns",
        )
    for part in getattr(schedule, "_schedulers", ()):
        refuse_schedule(part, optimizer)


def refuse_model(model: nn.Module) -> None:
    """RecipeError for state of a model that is neither parameter nor buffer, or not ordinary memory."""
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise RecipeError(
                f"module {name or type(module).__qualname__} keeps extra state (get_extra_state)",
                "a checkpoint holds parameters and buffers, so this state would be lost",
                "register what it keeps as a buffer (register_buffer)",
            )
    for name, tensor in _all_names(model):
        if is_lazy(tensor):
            raise RecipeError(
                f"{name} has no shape yet (a lazy module)",
                "all workers must start from the same, complete parameters",
                "run one batch through the model in build(), or give the sizes",
            )
