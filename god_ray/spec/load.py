"""From a file, `--set` strings and Python values to one `RunSpec`, or to every fault at once.

In: a path or a mapping. Out: a `LoadedSpec`, which also says where each value came from. Reads that one file
and nothing else: data and recipe are looked at by `check`. Every failure is a `SpecError` whose
`data["problems"]` lists `Problem`s; nothing has been started or written by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from god_ray.errors import SpecError
from god_ray.spec.check import check
from god_ray.spec.overrides import PYTHON, expanded, set_fields, set_overrides
from god_ray.spec.paths import resolved
from god_ray.spec.problem import ABSENT, Fault, Problem, dotted
from god_ray.spec.problem import Path as Keys
from god_ray.spec.run import RunSpec
from god_ray.spec.tree import Tree
from god_ray.spec.values import Section
from god_ray.spec.yaml12 import read_file


@dataclass
class LoadedSpec:
    """`base`: the folder that relative paths started at. `origins`: key to `run.yaml:4`, `--set`, `python`,
    `default`.
    """

    spec: RunSpec
    path: Path | None
    base: Path
    origins: dict[str, str]


def load(
    path: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = (), **fields: Any
) -> LoadedSpec:
    """Read a spec.

    `path` is a YAML 1.2 file, or a mapping instead of one. Python `fields` are laid over it, then
    `overrides`, strings `a.b=c` whose values are read as YAML. Raises SpecError with all problems.
    """
    tree, file, base = _source(path)
    for key in list(tree.value):
        tree.value[key] = expanded((key,), tree.value[key])
    set_fields(tree, fields)
    set_overrides(tree, [overrides] if isinstance(overrides, str) else overrides)
    spec, faults = check(tree)
    problems = tree.problems + [_problem(tree, fault) for fault in faults]
    if spec is None or problems:
        raise _error(tree.root.file, problems)
    return LoadedSpec(resolved(spec, base), file, base, dict(_origins(tree, spec, ())))


def _source(path: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Tree, Path | None, Path]:
    if isinstance(path, Mapping):
        tree = Tree(PYTHON)
        set_fields(tree, path)
        return tree, None, Path.cwd()
    name = os.fspath(path)
    file = Path(os.path.expanduser(name)).absolute()
    tree = read_file(_text(name, file), name, "".join(c if c.isprintable() else "?" for c in file.name))
    if tree.problems and not tree.value:
        raise _error(name, tree.problems)
    return tree, file, file.parent


def _text(name: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        rule, fix = "no such file", "check the path; `god-ray init` writes a spec to start from"
    except IsADirectoryError:
        rule, fix = "is a folder", f"name the file in it, for example {os.path.join(name, 'run.yaml')}"
    except UnicodeDecodeError as error:
        rule, fix = f"is not UTF-8 text (byte {error.start})", "save the file as UTF-8"
    except OSError as error:
        rule, fix = f"cannot be read: {error.strerror}", "check the path and its permissions"
    raise _error(name, [Problem("", ABSENT, rule, fix, name, 0)])


def _problem(tree: Tree, fault: Fault) -> Problem:
    """A fault with its file and line: those of the key itself, or else of the written key that it clashes
    with.
    """
    written = next((p for p in (fault.path, *fault.uses) if tree.get(p) is not ABSENT), fault.path)
    place = tree.place(written)
    value = tree.get(fault.path)
    if value is ABSENT or isinstance(value, float):
        value = value if fault.value is ABSENT else fault.value
    return Problem(dotted(fault.path), value, fault.rule, fault.fix, place.file, place.line)


def _error(file: str, problems: list[Problem]) -> SpecError:
    rank = {"python": 1, "--set": 2}
    ordered = sorted(problems, key=lambda problem: (rank.get(problem.file, 0), problem.line))
    count = "1 fault" if len(ordered) == 1 else f"{len(ordered)} faults"
    return SpecError(
        f"{file} has {count}; nothing was started.", "\n  ".join(map(str, ordered)), problems=ordered
    )


def _origins(tree: Tree, value: Any, path: Keys) -> Iterator[tuple[str, str]]:
    """The origin of every value, sections and mappings by what is in them."""
    inner = dict(value) if isinstance(value, Section | dict) else {}
    if inner and not (len(path) == 3 and path[:2] == ("sweep", "search")):
        for key, part in inner.items():
            yield from _origins(tree, part, (*path, key))
    else:
        yield dotted(path), "default" if tree.get(path) is ABSENT else str(tree.place(path))
