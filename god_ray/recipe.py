"""What a user's Python file returns (`Recipe`), and finding that file's functions by path.

In: "recipe.py" and a function name. Out: the function, ready to be called and to be sent to workers.
Must not know the spec, Ray or the loop. Everything wrong in the user's file surfaces here, as a `RecipeError`
that names the file and the line.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from god_ray.errors import RecipeError
from god_ray.rowrandom import RowRandom
from god_ray.userfile import UserFile

if TYPE_CHECKING:
    import pyarrow as pa

FITTED = "fitted"
"""The second argument that `build` may have."""
Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor | tuple[Tensor, Tensor]]
Metrics = Callable[[nn.Module, Batch], Mapping[str, Tensor | tuple[Tensor, Tensor]]]
Transform = Callable[[Batch, RowRandom], Batch]
Collate = Callable[["pa.Table"], Batch]


@dataclass(frozen=True)
class Recipe:
    """What to train: the return value of `build(config)` or `build(config, fitted)` in a recipe file.

    `fitted` is what `data.fit` found in the training set, by column: `fitted["carrier"].size` (for an
    embedding) and `.values`, `fitted["distance"].mean` and `.std`.

    `model`      any `nn.Module`, on the CPU; god_ray moves it.
    `optimizer`  over parameters of that model. It is stepped once per global batch.
    `loss`       `loss(model, batch)` -> the mean over the batch's rows (a scalar), or `(sum, weight)`, two
                 scalars, for weighted or masked losses: both are added up over the whole global batch and
                 divided once, so a lane with few valid rows does not count too much.
    `schedule`   a torch `LRScheduler` over the same optimizer, stepped once after every optimizer step, not
                 once per epoch.
    `metrics`    `metrics(model, batch)` -> {name: one value per row, or (sum, count)}; called on `data.eval`
                 in eval mode without gradients, each row exactly once.
    `transform`  `transform(batch, rng)` -> batch: augmentation of training batches, new in each epoch. Draw
                 from `rng` (`random`, `normal`, `integers`: one line per row), never from torch or numpy: its
                 values follow from (seed, epoch, row), whatever rows share the batch.
    `collate`    `collate(table)` -> batch: turns the Arrow table of one batch into tensors, where the columns
                 cannot be used as they are. A pure function, row by row.

    `batch` is a dict of tensors by column name; the first dimension is the row.

    What a recipe may not do
        - talk to other processes: no `torch.distributed`, no DistributedDataParallel, no SyncBatchNorm.
          god_ray reduces the gradients.
        - keep state outside the model, the optimizer and the schedule (global counters, caches filled by
          `loss`, hooks that count steps): it is not saved, not given to new workers, and differs among them.
        - change parameters in `loss` or in a forward pass, as `nn.Embedding(max_norm=...)` does: that is the
          optimizer's. What a forward pass changes is kept in buffers.
        - read time, environment, files or generators of its own inside `loss`: what is computed must follow
          from (model, batch).
        - set threads, devices, dtypes or deterministic flags of the process: the spec does that.

    What differs from a plain loop
        - `loss` sees a *leaf*, one lane's share of the global batch (batch_size / lanes rows). For a mean
          over rows that is the same; BatchNorm statistics and losses that compare rows (contrastive,
          in-batch negatives) see the leaf only. `lanes`, like the batch size, is part of the result.
        - torch's generators are seeded anew for every leaf from (seed, step, lane), so dropout needs no saved
          state; they are seeded from `seed` before `build` is called.
        - `build` may be called several times, in several processes, and must return the same each time.

    Raises RecipeError, naming the argument, if one of these cannot be used.
    """

    model: nn.Module
    optimizer: Optimizer
    loss: Loss
    schedule: LRScheduler | None = None
    metrics: Metrics | None = None
    transform: Transform | None = None
    collate: Collate | None = None

    def __post_init__(self) -> None:
        _check_model(self.model)
        _check_optimizer(self.optimizer, self.model)
        _check_schedule(self.schedule, self.optimizer)
        for name in ("loss", "metrics", "transform", "collate"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name == "loss"):
                raise RecipeError(
                    f"Recipe({name}=...) is {_describe(value)}", "It must be a function.", _FIXES[name]
                )


_FIXES = {
    "loss": "pass loss=f, where f(model, batch) returns the mean loss of the rows",
    "metrics": "pass metrics=f, where f(model, batch) returns a dict, or leave it out",
    "transform": "pass transform=f, where f(batch, rng) returns a batch, or leave it out",
    "collate": "pass collate=f, where f(table) returns a dict of tensors, or leave it out",
}


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise RecipeError(
            f"Recipe(model=...) is {_describe(model)}",
            "It must be a torch.nn.Module instance.",
            "pass an instance, for example model=Net(), not model=Net",
        )
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel, nn.SyncBatchNorm)
    for name, module in model.named_modules():
        if isinstance(module, parallel):
            raise RecipeError(
                f"Recipe(model=...) contains a {type(module).__name__} at {name or 'its root'}",
                "It would start collectives of its own; god_ray reduces gradients itself.",
                "pass the plain module",
            )
        if getattr(module, "sparse", False) is True:
            raise RecipeError(
                f"Recipe(model=...) contains a {type(module).__name__}(sparse=True) at {name or 'its root'}",
                "Its gradient is a sparse tensor; leaves are summed as dense ones.",
                "leave out sparse=True",
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise RecipeError(
            "Recipe(model=...) has no parameter that requires a gradient", "There is nothing to train."
        )


def _check_optimizer(optimizer: object, model: nn.Module) -> None:
    if not isinstance(optimizer, Optimizer):
        raise RecipeError(
            f"Recipe(optimizer=...) is {_describe(optimizer)}",
            "It must be a torch.optim.Optimizer instance.",
            "pass an instance, for example optimizer=torch.optim.AdamW(model.parameters())",
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise RecipeError(
            "Recipe(optimizer=...) is LBFGS",
            "It evaluates the loss several times per step; a step here is one update over one global batch.",
            "use a first-order optimizer such as AdamW or SGD",
        )
    known = {id(p) for p in model.parameters()}
    foreign = [
        tuple(p.shape) for group in optimizer.param_groups for p in group["params"] if id(p) not in known
    ]
    if foreign:
        raise RecipeError(
            f"Recipe(optimizer=...) holds {len(foreign)} parameters from outside the model: {foreign[:3]}",
            "Its state is saved under the names that parameters have in the model.",
            "make everything that is trained part of the model, and build the optimizer from it",
        )


def _check_schedule(schedule: object, optimizer: Optimizer) -> None:
    if schedule is None:
        return
    if isinstance(schedule, ReduceLROnPlateau):
        raise RecipeError(
            "Recipe(schedule=...) is ReduceLROnPlateau",
            "A schedule is stepped once per step, without a metric.",
            "use a schedule that follows from the step, such as LambdaLR or OneCycleLR",
        )
    if not isinstance(schedule, LRScheduler):
        raise RecipeError(
            f"Recipe(schedule=...) is {_describe(schedule)}",
            "It must be a torch.optim.lr_scheduler.LRScheduler.",
            "pass an instance, for example LambdaLR(optimizer, factor), or leave it out",
        )
    if schedule.optimizer is not optimizer:
        raise RecipeError(
            "Recipe(schedule=...) drives another optimizer than Recipe(optimizer=...)",
            "Its learning rates would never be used.",
            "build both around the same optimizer object",
        )


@dataclass(frozen=True)
class Builder:
    """A recipe file's build function; calling it checks what comes back. Can be pickled by Ray."""

    file: UserFile
    function: Callable[..., object]

    @property
    def wants_fitted(self) -> bool:
        """Whether it is `build(config, fitted)`."""
        return FITTED in inspect.signature(self.function).parameters

    def __call__(self, config: Mapping[str, Any], fitted: Mapping[str, Any] | None = None) -> Recipe:
        """fitted: what `data.fit` found, by column."""
        name = self.function.__name__
        more = {FITTED: dict(fitted or {})} if self.wants_fitted else {}
        with self.file.blame(f"{name}(config)", config):
            recipe = self.function(copy.deepcopy(dict(config)), **more)
        if not isinstance(recipe, Recipe):
            raise RecipeError(
                f"{self.file.where(self.function)}: {name}(config) returned {_describe(recipe)}",
                "It must return a god_ray.Recipe.",
                f"end {name} with: return god_ray.Recipe(model=model, optimizer=optimizer, loss=loss)",
            )
        return recipe


def load_recipe(path: str, function: str = "build") -> Builder:
    """The build function of a recipe file, as a callable `(config: dict) -> Recipe`.

    The file is executed under a stable name of its own, with its folder importable, so it can import its
    neighbours. Raises RecipeError (also when called) with the user's file and line.
    """
    file, found = UserFile.load(path, function)
    builder = Builder(file, found)
    file.check_arguments(found, ("config", FITTED) if builder.wants_fitted else ("config",))
    return builder


def load_function(reference: str) -> Callable[..., Any]:
    """The function that `"path/to/file.py:name"` refers to (`data.preprocess` and the like).

    Raises RecipeError if the reference has another form, or as `load_recipe` does.
    """
    path, colon, name = reference.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise RecipeError(
            f"{reference!r} does not name a function",
            "A function is named by its file and its name.",
            "write it as path/to/file.py:name",
        )
    return UserFile.load(path, name)[1]


def _describe(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, tuple):
        return f"a tuple of ({', '.join(type(item).__name__ for item in value)})"
    return f"a {type(value).__name__}"
