"""Does this snapshot belong to this model, optimizer and schedule? Refuses before anything is touched.

In: a snapshot's scalars and the live objects. Out: nothing, or a CheckpointError with both lists, shortened
in the message, whole in `data` (`part`, `saved`, `found`). Must not know tensors' values or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from god_ray.checkpoint.codec import JSON
from god_ray.checkpoint.live import model_shape, optimizer_names, schedule_kind
from god_ray.errors import CheckpointError, few


def refuse_other_model(scalars: Mapping[str, JSON], model: nn.Module) -> None:
    found = model_shape(model)
    for part in ("parameters", "buffers", "tied"):
        if scalars[part] != found[part]:
            raise _changed(part, _lines(part, scalars[part]), _lines(part, found[part]))


def refuse_other_optimizer(scalars: Mapping[str, JSON], model: nn.Module, optimizer: Optimizer) -> None:
    saved: Any = scalars["optimizer"]
    kind = type(optimizer).__qualname__
    if saved["class"] != kind:
        raise _changed("optimizer", [saved["class"]], [kind])
    names = optimizer_names(model, optimizer)
    now = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    then = [group["names"] for group in saved["groups"]]
    if now != then:
        raise _changed("parameter groups", _numbered(then), _numbered(now))


def refuse_other_schedule(scalars: Mapping[str, JSON], schedule: LRScheduler | None) -> None:
    saved: Any = scalars["schedule"]
    then, now = "none" if saved is None else saved["class"], schedule_kind(schedule)
    if then != now:
        raise _changed("schedule", [then], [now])


def _numbered(groups: Iterable[Iterable[str]]) -> list[str]:
    return [f"group {index}: {name}" for index, names in enumerate(groups) for name in names]


def _lines(part: str, content: Any) -> list[str]:
    if part == "tied":
        return [f"{name} is {first}" for name, first in content.items()]
    return [
        f"{name} {dtype}{shape}" + ("" if all(trained) else " (frozen)")
        for name, dtype, shape, *trained in content
    ]


def _changed(part: str, saved: list[str], found: list[str]) -> CheckpointError:
    if sorted(saved) == sorted(found):  # only the order differs
        then, now = saved, found
    else:
        then = [line for line in saved if line not in set(found)]
        now = [line for line in found if line not in set(saved)]
    return CheckpointError(
        f"the checkpoint does not fit the recipe: {part} changed",
        f"in the checkpoint: {few(then) or 'none'}; in the recipe: {few(now) or 'none'}",
        "resume with the recipe that wrote the checkpoint, or start a new run from its weights (init_from)",
        part=part,
        saved=saved,
        found=found,
    )
