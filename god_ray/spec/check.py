"""Every fault of a spec's values at once: key by key, then between keys, then for what a sweep would put in.

In: the nested values of a `Tree`. Out: a `RunSpec`, or faults by path. pydantic checks single keys; where
some fail, the rules between keys are still applied to the others. Must not know files and lines: `load.py`
adds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from god_ray.spec.mend import mend
from god_ray.spec.overrides import parse_key, put
from god_ray.spec.problem import Fault, Path, dotted, shown
from god_ray.spec.rules import between_keys
from god_ray.spec.run import RunSpec
from god_ray.spec.schema import FREE, SEARCH, field_at, nullable, says, section_at
from god_ray.spec.suggest import unknown_key
from god_ray.spec.tree import Place, Tree

# Stand-ins for required keys, only so that the rules between the other keys can be applied.
_STAND_INS: dict[str, Any] = {
    "recipe": "recipe.py",
    "train": ["train.parquet"],
    "batch_size": 1,
    "metric": "loss",
    "path": "runs/a",
    "search": {"config.x": {"choice": [0]}},
}


def check(tree: Tree) -> tuple[RunSpec | None, list[Fault]]:
    """The spec that the values make, or None and every fault."""
    faults = [*_unusable(tree.value, ())]
    spec, more = _keys_and_rules(tree)
    faults += [fault for fault in more if not _covered(fault.path, faults)]
    faults += [fault for fault in _sweep(tree, faults) if not _covered(fault.path, faults)]
    return (None if faults else spec), faults


def _keys_and_rules(tree: Tree) -> tuple[RunSpec | None, list[Fault]]:
    value = {"data": {}, **tree.value}
    try:
        spec: RunSpec | None = RunSpec.model_validate(value)
        faults: list[Fault] = []
    except ValidationError as error:
        details = error.errors(include_url=False)
        faults = list({fault.path: fault for fault in (_fault(tree, d) for d in details)}.values())
        spec = _repaired(value, [fault.path for fault in faults])
    if spec is not None:
        wrong = list(faults)
        faults += [f for f in between_keys(spec) if not any(_related(p, wrong) for p in (f.path, *f.uses))]
    return spec, faults


def _fault(tree: Tree, detail: ErrorDetails) -> Fault:
    """One pydantic error in our words."""
    path: Path = detail["loc"]
    if detail["type"] == "extra_forbidden":
        return Fault(path, "unknown key", unknown_key(path))
    if detail["type"] == "rule":
        return Fault(path, detail["msg"], "keep one of them")
    info = field_at(path)
    while info is None and section_at(path) is None and path:
        path = path[:-1]
        info = field_at(path)
    if info is None:
        keys = ", ".join(getattr(section_at(path), "model_fields", ()))
        return Fault(
            path, f"must be a mapping of {keys}", f"write for example {path[-1]}: {{choice: [1, 2]}}"
        )
    words = says(info)
    if detail["type"] == "missing":
        return Fault(path, f"is required: {words.rule}", f"add `{path[-1]}: {words.example}`")
    index = detail["loc"][len(path) :][:1]
    where = (*path, *index) if index and isinstance(index[0], int) else path
    return Fault(where, _accepts(info), mend(path, info, tree.get(path), tree.place(path).text))


def _accepts(info: FieldInfo) -> str:
    return f"must be {says(info).rule}" + (", or null" if nullable(info) else "")


def _repaired(value: dict[str, Any], wrong: list[Path]) -> RunSpec | None:
    """The spec without its wrong keys, stand-ins for required ones; None when that cannot be had."""
    value = deepcopy(value)
    for path in wrong:
        _drop(value, path)
    for _ in range(4):  # what is taken out or put in may leave a section short of something else
        try:
            return RunSpec.model_validate(value)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                (_insert if detail["type"] == "missing" else _drop)(value, detail["loc"])
    return None


def _drop(value: Any, path: Path) -> None:
    *parents, last = [part for part in path if isinstance(part, str)]
    for part in parents:
        value = value.get(part)
        if not isinstance(value, dict):
            return
    value.pop(last, None)


def _insert(value: Any, path: Path) -> None:
    for part in path[:-1]:
        value = value.setdefault(part, {})
    value[path[-1]] = {} if path == ("data",) else deepcopy(_STAND_INS[str(path[-1])])


def _unusable(value: Any, path: Path) -> Iterator[Fault]:
    """What may stand nowhere in a spec, free values included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if "${" in key:
                yield _variable((*path, key))
            yield from _unusable(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unusable(inner, (*path, index))
    elif isinstance(value, str) and "${" in value:
        yield _variable(path)
    elif isinstance(value, float) and not math.isfinite(value):
        info = field_at(path)
        wanted = _accepts(info) if info else "must be a finite number, or null"
        yield Fault(
            path,
            f"{wanted}; infinity and not-a-number are refused",
            "write a finite number, or null",
            (),
            str(value),
        )


def _variable(path: Path) -> Fault:
    fix = f'write the value, or let the shell fill it in: --set {dotted(path)}="$NAME"'
    return Fault(path, "variables are not expanded in a spec", fix)


def _sweep(tree: Tree, known: list[Fault]) -> Iterator[Fault]:
    """Search keys that are no keys, and values that a trial could not load."""
    search = tree.get(SEARCH)
    spec = _keys_and_rules(tree)[0] if isinstance(search, dict) else None
    if spec is None or spec.sweep is None or _related((*SEARCH,), known):
        return
    for key, distribution in spec.sweep.search.items():
        path = parse_key(key)
        if path[0] in ("sweep", "name", "storage"):
            yield Fault((*SEARCH, key), "every trial has this from its sweep", f"remove {key}")
        elif field_at(path) is None and (path[:1] != FREE or len(path) < 2):
            yield Fault((*SEARCH, key), "no such key in a spec", unknown_key(path))
        else:
            yield from _drawn(tree, key, distribution.extremes(), known)


def _drawn(tree: Tree, key: str, values: list[Any], known: list[Fault]) -> Iterator[Fault]:
    for value in values:
        trial = Tree(tree.root, deepcopy(tree.value))
        put(trial, parse_key(key), value, {(): Place("", "")})
        for fault in _keys_and_rules(trial)[1]:
            if not _covered(fault.path, known) and fault.rule not in {other.rule for other in known}:
                rule = f"may draw {shown(value)}, but then {dotted(fault.path)} {fault.rule}"
                whole = isinstance(value, float) and not value.is_integer() and "whole number" in fault.rule
                fix = "draw it with randint or choice" if whole else fault.fix
                yield Fault((*SEARCH, key), rule, fix)
                return


def _covered(path: Path, faults: list[Fault]) -> bool:
    """Whether a fault was already found exactly there."""
    return any(fault.path == path for fault in faults)


def _related(path: Path, faults: list[Fault]) -> bool:
    """Whether a fault lies at, above or below `path`."""
    return any(f.path[: len(path)] == path or path[: len(f.path)] == f.path for f in faults)
