"""One thing that is wrong with a data set, and how all of them become one error.

In: what a survey of the files found. Out: `Fault`s with file, column, type, rule and fix, `refuse`d together.
Must not know how they are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from god_ray.errors import DataError

_SHOWN = 20


@dataclass(frozen=True)
class Fault:
    """`column`, `type`: "" where it is the file that is at fault."""

    file: str
    column: str
    type: str
    rule: str
    fix: str

    def __str__(self) -> str:
        subject = ": ".join(part for part in (self.file, self.column and f"column {self.column}") if part)
        kind = f" ({self.type})" if self.type else ""
        return f"{subject}{kind}: {self.rule}. Fix: {self.fix}"


def refuse(faults: Sequence[Fault]) -> DataError:
    """One error for all of them, which are its `data["faults"]`."""
    if len(faults) == 1:
        fault = faults[0]
        return DataError(str(fault), faults=list(faults), file=fault.file, column=fault.column)
    lines = [str(fault) for fault in faults[:_SHOWN]]
    if len(faults) > _SHOWN:
        lines.append(f"... and {len(faults) - _SHOWN} more")
    return DataError(f"{len(faults)} faults in the data:", "\n  ".join(lines), faults=list(faults))


def first_line(error: BaseException) -> str:
    """What a library says of a failure, short enough for a rule."""
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
