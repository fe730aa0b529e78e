"""The rules between keys that need neither the data nor the recipe.

In: a spec whose keys are right one by one. Out: `Fault`s that name every key they looked at, so that a rule
about a key that is wrong in itself can be dropped. Must not import torch, ray or pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator

from god_ray.fileuri import has_secrets, plain
from god_ray.spec.problem import Fault, Path
from god_ray.spec.run import RunSpec


def between_keys(spec: RunSpec) -> Iterator[Fault]:
    """Every broken rule of a spec."""
    for rule in (_places, _length, _workers, _lanes, _batch, _evaluated, _asha):
        yield from rule(spec)


def _places(spec: RunSpec) -> Iterator[Fault]:
    places: list[tuple[Path, str | None]] = [
        (("recipe",), spec.recipe),
        (("data", "preprocess"), spec.data.preprocess),
        (("init_from", "path"), spec.init_from.path if spec.init_from else None),
        (("storage",), spec.storage),
    ]
    for key, texts in (("train", spec.data.train), ("eval", spec.data.eval)):
        places += [(("data", key, index), text) for index, text in enumerate(texts or [])]
    for path, text in places:
        try:
            plain(text or "")
        except ValueError as error:
            yield Fault(path, str(error), "write file:///..., with three slashes, or a plain path")
        if has_secrets(text or ""):
            fix = "take them out, and give them by the environment (AWS_ACCESS_KEY_ID and the like)"
            yield Fault(path, "credentials stand in the URI, and a place is kept with the run", fix)


def _length(spec: RunSpec) -> Iterator[Fault]:
    uses = (("epochs",), ("steps",))
    if spec.epochs is None and spec.steps is None:
        rule = "exactly one of epochs and steps is needed, neither is given"
        yield Fault(("epochs",), rule, "add `epochs: 10` or `steps: 1000`", uses)
    elif spec.epochs is not None and spec.steps is not None:
        rule = f"exactly one of epochs and steps is needed, and epochs = {spec.epochs} is given too"
        yield Fault(("steps",), rule, "keep one; `--set epochs=null` takes the other away", uses)


def _workers(spec: RunSpec) -> Iterator[Fault]:
    low, high = spec.workers.min, spec.workers.max
    if low > high:
        rule = f"is above workers.max = {high}"
        yield Fault(("workers", "min"), rule, f"set workers: {high}:{low}", (("workers", "max"),), low)


def _lanes(spec: RunSpec) -> Iterator[Fault]:
    most, lanes = max(spec.workers.min, spec.workers.max), spec.lanes
    if most > lanes:
        key = "max" if spec.workers.max == most else "min"
        rule = f"is above lanes = {lanes}, and every worker needs a lane"
        fix = f"lanes is part of the result; set lanes: {most}, or at most {lanes} workers"
        yield Fault(("workers", key), rule, fix, (("workers", "min"), ("workers", "max"), ("lanes",)), most)


def _batch(spec: RunSpec) -> Iterator[Fault]:
    least = spec.lanes * spec.data.min_leaf_rows
    if spec.batch_size < least:
        rule = f"is below lanes * data.min_leaf_rows = {spec.lanes} * {spec.data.min_leaf_rows} = {least}"
        fix = f"set batch_size: {least} or more, or fewer lanes"
        yield Fault(("batch_size",), rule, fix, (("lanes",), ("data", "min_leaf_rows")))


def _evaluated(spec: RunSpec) -> Iterator[Fault]:
    if spec.data.eval is not None:
        return
    best = spec.checkpoint.keep_best
    watching = (
        (("stop_when",), spec.stop_when),
        (("checkpoint", "keep_best"), best),
        (("sweep",), spec.sweep),
    )
    for path, part in watching:
        if part is not None:
            rule = f"watches the evaluation metric {part.metric!r}, but there is no data.eval"
            fix = f"add `data: {{eval: ...}}`, or remove {'.'.join(path)}"
            yield Fault((*path, "metric"), rule, fix, (("data", "eval"),))


def _asha(spec: RunSpec) -> Iterator[Fault]:
    asha = spec.sweep.asha if spec.sweep else None
    if asha is not None and asha.max is not None and asha.max < asha.grace:
        rule = f"is below sweep.asha.grace = {asha.grace}"
        yield Fault(
            ("sweep", "asha", "max"), rule, f"set max: {asha.grace} or more", (("sweep", "asha", "grace"),)
        )
