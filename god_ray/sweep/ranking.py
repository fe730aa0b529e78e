"""How trials compare: one number each, higher is better, and what is not a number comes last.

In: metrics and states of trials. Out: scores, an order, plain records for JSON. Pure: no Ray, no files. A
trial without a finite metric is never the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from god_ray.errors import UserError

WORST = -1e300
"""The score of NaN and infinities: finite, so that the quantiles of the other trials stay numbers."""


@dataclass(frozen=True)
class Row:
    """One trial as it ended. `value`: the metric of its last evaluation, None without one."""

    name: str
    state: str
    reason: str
    values: dict[str, Any]
    value: float | None
    evaluations: int
    step: int
    digest: str
    folder: Path

    @property
    def valid(self) -> bool:
        return self.value is not None and math.isfinite(self.value)

    def as_plain(self) -> dict[str, Any]:
        """For JSON, which has neither NaN nor infinities: they are text, as in the ledger."""
        finite = self.value is None or math.isfinite(self.value)
        spelt = None if finite else str(self.value).replace("nan", "NaN").replace("inf", "Infinity")
        return {
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "values": self.values,
            "value": spelt or self.value,
            "evaluations": self.evaluations,
            "step": self.step,
            "digest": self.digest,
            "folder": str(self.folder),
        }


def score(metrics: Mapping[str, Any], metric: str, mode: str) -> float:
    """The metric with its sign set so that higher is better. Raises UserError if it was not measured."""
    if metric not in metrics:
        raise UserError(
            f"sweep.metric {metric!r} was not measured.",
            f"The evaluation has {', '.join(sorted(metrics))}.",
            "name one of these, or return it from the recipe's metrics().",
        )
    value = float(metrics[metric])
    if not math.isfinite(value):
        return WORST
    return value if mode == "max" else -value


def ranked(rows: Sequence[Row], mode: str) -> list[Row]:
    """Best first; among equals the earlier trial; those without a valid metric last."""

    def key(row: Row) -> tuple[bool, float, str]:
        if row.value is None or not row.valid:
            return True, 0.0, row.name
        return False, -row.value if mode == "max" else row.value, row.name

    return sorted(rows, key=key)
