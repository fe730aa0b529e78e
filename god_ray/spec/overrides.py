"""Values from `--set a.b=c` and from Python keywords, laid over what the file says.

In: a `Tree`, and strings or plain Python values. Out: the same tree changed, with places `--set` and
`python`, so that a fault in an override is reported like one in the file. A mapping for a section changes
only the keys it names; below `config.KEY` a value is replaced whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from god_ray.spec.problem import ABSENT, Path, Problem, dotted
from god_ray.spec.schema import FREE, SEARCH, section_at
from god_ray.spec.tree import Place, Tree
from god_ray.spec.yaml12 import read

SET = Place("--set", "--set")
PYTHON = Place("python", "python")


def parse_key(key: str) -> Path:
    """`data.train` as ("data", "train"). Keys of `sweep.search` have dots of their own and stay whole."""
    parts = tuple(key.split("."))
    if parts[:2] == SEARCH and len(parts) > 2:
        return (*SEARCH, ".".join(parts[2:]))
    return parts


def set_overrides(tree: Tree, overrides: Sequence[str]) -> None:
    """Apply `KEY=VALUE` strings in order; a value is read as YAML 1.2."""
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            rule, fix = "must be KEY=VALUE", "write for example --set batch_size=64"
            tree.problems.append(Problem(override, ABSENT, rule, fix, SET.file, 0))
            continue
        value, places, problems = read(text, SET)
        if problems:
            tree.problems += [_unreadable(key, text, problem) for problem in problems]
            continue
        put(tree, parse_key(key), value, places or {(): SET})


def _unreadable(key: str, text: str, problem: Problem) -> Problem:
    """A fault inside the value of a `--set`, with the key it was meant for."""
    if problem.key:
        return replace(problem, key=f"{key}.{problem.key}")
    return replace(problem, key=key, value=text, fix=f"put the text in quotes: --set '{key}=\"{text}\"'")


def set_fields(tree: Tree, given: Mapping[str, Any]) -> None:
    """Apply Python values; a name may be dotted, as in `--set`."""
    for key, value in given.items():
        path = parse_key(key)
        put(tree, path, _plain(tree, path, value), {(): PYTHON})


def put(tree: Tree, path: Path, value: Any, places: Mapping[Path, Place]) -> None:
    """Write `value` at `path`; `places` are relative to it and include the place of the value itself."""
    place = places[()]
    container = tree.value
    for depth in range(1, len(path)):
        here = path[:depth]
        inner = expanded(here, container.get(str(here[-1])))
        if inner is None:
            inner = {}
            tree.places[here] = place
        if not isinstance(inner, dict):
            rule = f"{dotted(here)} = {inner!r} has no keys in it"
            fix = f"set it whole: {dotted(here)}=..."
            tree.problems.append(Problem(dotted(path), value, rule, fix, place.file, place.line))
            return
        container[str(here[-1])] = inner
        container = inner
    value = expanded(path, value)
    last = str(path[-1])
    merges = section_at(path) is not None or path in (FREE, SEARCH)
    if merges and isinstance(value, dict) and isinstance(expanded(path, container.get(last)), dict):
        for key, inner in value.items():
            below = {known[1:]: at for known, at in places.items() if known[:1] == (key,)}
            put(tree, (*path, key), inner, {(): place, **below})
        return
    tree.forget(path)
    container[last] = value
    tree.places.update({(*path, *known): at for known, at in places.items()})


def expanded(path: Path, value: Any) -> Any:
    """A shorthand (`workers: 4`) as the mapping it stands for."""
    shorthand = getattr(section_at(path), "shorthand", None)
    return shorthand(value) if shorthand else value


def _plain(tree: Tree, path: Path, value: Any) -> Any:
    """Python values as YAML could have given them; what it could not is a fault."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        result = {}
        for key, inner in value.items():
            if isinstance(key, str):
                result[key] = _plain(tree, (*path, key), inner)
            else:
                _refuse(tree, (*path, str(key)), key, "a key must be text", f'write "{key}"')
        return result
    if isinstance(value, list | tuple):
        return [_plain(tree, (*path, i), inner) for i, inner in enumerate(value)]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()  # a NumPy scalar
    if value is None or isinstance(value, str | bool | int | float):
        return value
    rule = f"a spec holds text, numbers, true, false, null, lists and mappings, not {type(value).__name__}"
    _refuse(tree, path, value, rule, "convert it, or make it inside the recipe from a plain value")
    return None


def _refuse(tree: Tree, path: Path, value: object, rule: str, fix: str) -> None:
    tree.problems.append(Problem(dotted(path), repr(value), rule, fix, PYTHON.file, 0))
