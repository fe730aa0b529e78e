"""`eval:`, `stop_when:` and `checkpoint:` - what happens between steps: measure, stop early, save, keep.

In: mappings from the spec. Out: frozen sections. Must not know how a metric is computed or where a checkpoint
goes. A wrong value shows as a `Problem` under the section's key; what needs `data.eval` is in `rules.py`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from god_ray.spec.values import Above0, Every, Positive, Section, Text

Mode = Literal["min", "max"]


class Eval(Section):
    """When the run is evaluated on `data.eval`."""

    every: Every = Field(
        default="epoch", description="`epoch`, or every so many steps; always at the end of the run too."
    )


class StopWhen(Section):
    """Early stopping, decided from the evaluation. null: train to the end."""

    metric: Text = Field(examples=["accuracy"], description="Name of the evaluation metric that is watched.")
    mode: Mode = Field(default="min", description="Whether lower (`min`) or higher (`max`) is better.")
    patience: Positive = Field(
        default=3, description="Evaluations in a row without a new best after which the run stops."
    )


class KeepBest(Section):
    """The checkpoint with the best value of a metric, kept beside the newest ones. null: only the newest are
    kept.
    """

    metric: Text = Field(
        examples=["accuracy"],
        description="Name of the evaluation metric that decides which checkpoint is best.",
    )
    mode: Mode = Field(default="min", description="Whether lower (`min`) or higher (`max`) is better.")


class Checkpoint(Section):
    """When the state is saved, and how much is kept. A run also saves when it ends, stops or is paused."""

    every_steps: Positive | None = Field(
        default=None, description="Save every so many steps. null: not by steps."
    )
    every_s: Above0 | None = Field(
        default=60.0,
        description="Save when so many seconds have passed since the last save. null: not by time.",
    )
    keep: Positive = Field(default=3, description="How many of the newest checkpoints stay.")
    keep_best: KeepBest | None = Field(
        default=None, description="Also keep the best one by a metric. null: only the newest are kept."
    )
