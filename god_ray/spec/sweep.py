"""`sweep:` - many runs of one spec with other values, and which of them to give up early.

In: a mapping from the spec. Out: a frozen `Sweep`. Must not import ray: `god_ray.sweep` runs it. Whether a
search key is a key of the spec, and whether its values would load, is checked in `check.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from god_ray.spec.values import AtLeast2, Positive, Says, Section, Text


def _ascending(value: list[Any]) -> list[Any]:
    if len(value) != 2 or not value[0] < value[1]:
        raise ValueError
    return value


def _above_zero(value: list[float]) -> list[float]:
    if value[0] <= 0:
        raise ValueError
    return value


Range = Annotated[
    list[float], AfterValidator(_ascending), Says("[low, high], two numbers, low below high", "[0.1, 0.5]")
]
LogRange = Annotated[
    list[float],
    AfterValidator(_ascending),
    AfterValidator(_above_zero),
    Says("[low, high], two numbers above 0, low below high", "[1e-4, 1e-1]"),
]
WholeRange = Annotated[
    list[int],
    AfterValidator(_ascending),
    Says("[low, high], two whole numbers, low below high; high itself is never drawn", "[1, 10]"),
]
Choices = Annotated[list[Any], MinLen(1), Says("a list of values, at least one", "[32, 64]")]


class Distribution(Section):
    """Where one key's values are drawn from: exactly one of these."""

    choice: Choices | None = Field(default=None, description="One of the listed values, each as likely.")
    uniform: Range | None = Field(default=None, description="A number between low and high.")
    loguniform: LogRange | None = Field(
        default=None, description="A number between low and high whose logarithm is uniform; low above 0."
    )
    randint: WholeRange | None = Field(
        default=None, description="A whole number from low up to, but not including, high."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Distribution:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise PydanticCustomError(
                "rule",
                "{rule}",
                {"rule": f"must name exactly one of choice, uniform, loguniform, randint; has {found}"},
            )
        return self

    def extremes(self) -> list[Any]:
        """Values that must be acceptable if every value that can be drawn is to be."""
        if self.choice is not None:
            return list(self.choice)
        if self.randint is not None:
            return [self.randint[0], self.randint[1] - 1]
        low, high = self.uniform or self.loguniform or (0.0, 0.0)
        between = float(f"{low + (high - low) * 0.618034:.6g}")  # not whole, and short to print
        return [low, min(max(between, low), high), high]


Search = Annotated[
    dict[str, Distribution],
    MinLen(1),
    Says(
        "a mapping from keys of the spec to what is drawn for them, at least one",
        "{config.lr: {loguniform: [1e-4, 1e-1]}}",
    ),
]


class Asha(Section):
    """Asynchronous successive halving: trials that lag behind are stopped early. null: every trial runs to
    the end.
    """

    grace: Positive = Field(
        default=1, description="Evaluations that every trial gets before it may be stopped."
    )
    reduction: AtLeast2 = Field(default=3, description="At each rung one trial of so many goes on.")
    max: Positive | None = Field(
        default=None,
        description="Evaluations after which nothing is stopped any more. null: those of a whole run.",
    )


class Sweep(Section):
    """Many runs of this spec with other values. null: none; `train` ignores it."""

    metric: Text = Field(examples=["accuracy"], description="Name of the metric that trials are compared by.")
    mode: Literal["min", "max"] = Field(
        default="min", description="Whether lower (`min`) or higher (`max`) is better."
    )
    trials: Positive = Field(default=10, description="How many trials are run in all.")
    concurrent: Positive = Field(default=1, description="How many trials run at the same time.")
    search: Search = Field(
        description="Key of the spec (`config.lr`, `batch_size`) to the distribution it is drawn from."
    )
    asha: Asha | None = Field(
        default=None, description="Stop trials that lag behind. null: every trial runs to the end."
    )
