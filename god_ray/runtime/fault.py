"""One thing that would keep a run from being right, in one form wherever it was found: spec, data, recipe or
machine.

In: problems of `spec`, faults of `ingest`, errors. Out: `Fault`s with the same parts. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from god_ray.errors import DataError, GodRayError, RecipeError, SpecError

Kind = Literal["spec", "recipe", "data", "run"]


@dataclass(frozen=True)
class Fault:
    """`where`: file, file:line or column, "" if `what` says it; `key`: of the spec, "" if none."""

    kind: Kind
    where: str
    key: str
    what: str
    why: str
    fix: str

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        text += f"\n    {self.why}" if self.why else ""
        return text + (f"\n    Fix: {self.fix}" if self.fix else "")


def faults_of(error: GodRayError, key: str = "") -> Iterator[Fault]:
    """Every fault that an error carries; itself, if it carries none."""
    if isinstance(error, SpecError) and error.data.get("problems"):
        yield from map(_of_problem, error.data["problems"])
    elif isinstance(error, DataError) and error.data.get("faults"):
        for fault in error.data["faults"]:
            column = f", column {fault.column}" if fault.column else ""
            type_ = f"{fault.type}: " if fault.type else ""
            yield Fault("data", f"{fault.file}{column}", key, f"{type_}{fault.rule}", "", fault.fix)
    else:
        kind: Kind = "run"
        if isinstance(error, RecipeError | DataError):
            kind = "recipe" if isinstance(error, RecipeError) else "data"
        yield Fault(kind, "", key, error.what, error.why, error.fix)


def _of_problem(problem: Any) -> Fault:
    """A `god_ray.spec.Problem`."""
    from god_ray.spec import ABSENT
    from god_ray.spec.problem import shown

    where = f"{problem.file}:{problem.line}" if problem.line else problem.file
    subject = problem.key if problem.value is ABSENT else f"{problem.key} = {shown(problem.value)}"
    what = f"{subject}: {problem.rule}" if problem.key else problem.rule
    return Fault("spec", where, problem.key, what, "", problem.fix)
