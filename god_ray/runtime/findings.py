"""What `god-ray verify` found: what held, what differs, what could not be looked at.

In: one call per finding. Out: plain data for the report. A check that fails at every step is cut short: the
first differences are what tells the cause.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MAX_PER_CHECK = 10


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it must be. `check`: ledger, rows, epochs, evaluation, checkpoints, ..."""

    check: str
    step: int | None
    text: str


@dataclass
class Findings:
    """`held`: sentences about what was found right. `skipped`: what could not be compared, and why."""

    held: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not self.counts.total()

    def differ(self, check: str, text: str, step: int | None = None) -> None:
        """Note a difference; beyond MAX_PER_CHECK of a kind only their number is kept, in `counts`."""
        self.counts[check] += 1
        if self.counts[check] <= MAX_PER_CHECK:
            self.differences.append(Difference(check, step, text))

    def hold(self, check: str, text: str) -> None:
        """Note that a check held, unless it was just seen that it did not."""
        if not self.counts[check]:
            self.held.append(text)
