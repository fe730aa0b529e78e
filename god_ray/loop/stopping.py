"""When to stop early, and which checkpoint is the best: one rule each over evaluation results.

In: the metrics of each evaluation, the same on every worker, so that all decide alike. Out: stop or go on;
better or not. The memory is two numbers, kept in the checkpoint. A metric that is missing is the user's
error; NaN never wins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from god_ray.errors import UserError


class Best:
    """Follows one metric; `mode` is "min" or "max"."""

    def __init__(self, metric: str, mode: str, patience: int | None = None) -> None:
        self.metric, self.mode, self.patience = metric, mode, patience
        self.value: float | None = None
        self.since = 0

    def better(self, metrics: Mapping[str, float]) -> bool:
        """Take in one evaluation; True if it is the best so far (a tie is not)."""
        if self.metric not in metrics:
            raise UserError(
                f"metric {self.metric!r} was not measured.",
                f"The evaluation has {', '.join(sorted(metrics))}.",
                "name one of these, or return it from the recipe's metrics().",
            )
        value = metrics[self.metric]
        better = not math.isnan(value) and (
            self.value is None or (value < self.value if self.mode == "min" else value > self.value)
        )
        self.value = value if better else self.value
        self.since = 0 if better else self.since + 1
        return better

    @property
    def exhausted(self) -> bool:
        """No better value for `patience` evaluations in a row."""
        return self.patience is not None and self.since >= self.patience

    def state(self) -> dict[str, float | int | None]:
        return {"value": self.value, "since": self.since}

    def restore(self, state: Mapping[str, float | int | None]) -> None:
        self.value = state["value"]
        self.since = int(state["since"] or 0)
