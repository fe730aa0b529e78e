"""Every error that god_ray raises on purpose, and the exit code each one ends in.

    GodRayError              what failed with its value - why - what to do
    ├── UserError            the spec, the recipe, the data or the command line is at fault      exit 2
    │   ├── SpecError        every fault of a spec at once (`.problems`)
    │   ├── RecipeError      the user's Python could not be imported or broke its contract
    │   ├── DataError        the data set cannot be used as it is
    │   ├── RunExists        the name is taken
    │   ├── NoRoom           the cluster can never hold so many workers
    │   ├── RunNotFound      no such run                                                         exit 102
    │   └── ResumeRefused    spec or data differ from the run's
    ├── RunFailed            training ended without a result; carries the first cause            exit 100
    │   ├── FingerprintMismatch   a worker would compute other bits
    │   ├── AuditMismatch    two workers computed different bits for one leaf
    │   ├── RowsMismatch     the rows read are not the rows planned
    │   └── LedgerMismatch   a replayed step differs from what the ledger already says
    ├── CheckpointError      a checkpoint is damaged, or none is left                            exit 100
    └── Bug                  an invariant of god_ray itself broke                                exit 1

Standard library only. All of them survive pickling, so they cross process borders whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SHOWN = 8


class GodRayError(Exception):
    """An error in three parts, each a sentence: what failed, why, and what to do."""

    exit_code = 1

    def __init__(self, what: str, why: str = "", fix: str = "", **data: Any) -> None:
        super().__init__(what, why, fix)
        self.what, self.why, self.fix, self.data = what, why, fix, data

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(self.why)
        if self.fix:
            parts.append(f"Fix: {self.fix}")
        return "\n  ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.why, self.fix, self.data)


def _rebuild(kind: type[GodRayError], what: str, why: str, fix: str, data: dict[str, Any]) -> GodRayError:
    return kind(what, why, fix, **data)


def few(names: Sequence[str]) -> str:
    """A list in a sentence: the first ones, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class UserError(GodRayError):
    exit_code = 2


class SpecError(UserError):
    """`data["problems"]` is a list of `god_ray.spec.Problem`."""


class RecipeError(UserError):
    pass


class DataError(UserError):
    pass


class RunExists(UserError):
    pass


class NoRoom(UserError):
    pass


class RunNotFound(UserError):
    exit_code = 102


class ResumeRefused(UserError):
    pass


class RunFailed(GodRayError):
    exit_code = 100


class FingerprintMismatch(RunFailed):
    pass


class AuditMismatch(RunFailed):
    pass


class RowsMismatch(RunFailed):
    pass


class LedgerMismatch(RunFailed):
    pass


class CheckpointError(GodRayError):
    exit_code = 100


class Bug(GodRayError):
    exit_code = 1
