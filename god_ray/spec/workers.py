"""`workers:` and `failures:` - how many processes a run may have, what each asks of the cluster, how often it
may fail.

In: `4`, `2:8` or a mapping. Out: a frozen `Workers`. Must not know how many CPUs exist. A wrong value shows
as a `Problem` under `workers.`; min > max and max > lanes are in `rules.py`.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, model_validator

from god_ray.spec.values import Amount, NotNegative, Positive, Section

_RANGE = re.compile(r"\s*(\d{1,9})\s*:\s*(\d{1,9})\s*")


class Workers(Section):
    """How many worker processes, and what each of them asks of the cluster. Also written `4` or `2:8`
    (min:max).
    """

    min: Positive = Field(
        default=1,
        description="The fewest workers that are meant. Today a run starts with `max` and never shrinks by "
        "itself; `god-ray scale` and `resume --workers` take any number from 1 to `lanes`.",
    )
    max: Positive = Field(
        default=1,
        description="The run starts with this many workers, at most `lanes`. Left out: the same as `min`.",
    )
    cpus: Amount = Field(default=1.0, description="CPUs that each worker reserves. 0: none are reserved.")
    gpus: Amount = Field(default=0.0, description="GPUs that each worker reserves. 0: it trains on the CPU.")

    @property
    def initial(self) -> int:
        """The number of workers a run asks for when it starts."""
        return self.max

    @staticmethod
    def shorthand(value: Any) -> Any:
        """`4` and `2:8` as the mapping they stand for; anything else unchanged."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "max": value}
        if isinstance(value, str) and (match := _RANGE.fullmatch(value)):
            return {"min": int(match[1]), "max": int(match[2])}
        return value

    @model_validator(mode="before")
    @classmethod
    def _accept(cls, value: Any) -> Any:
        value = cls.shorthand(value)
        if isinstance(value, dict) and "min" in value and "max" not in value:
            return {**value, "max": value["min"]}
        return value


class Failures(Section):
    """How often a run may lose workers before it gives up."""

    max: NotNegative = Field(
        default=3,
        description="Failures of the cluster after which the run ends as FAILED. 0: at the first one.",
    )
