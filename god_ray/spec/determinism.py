"""`determinism:` - whether a run must give the same bits whatever happens to it, and how that is watched.

In: the bare word or a mapping. Out: a frozen `Determinism`. Must not import torch: `runtime` applies it. A
wrong value shows as a `Problem` under `determinism.`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from god_ray.spec.values import Positive, Section


class Determinism(Section):
    """Same bits, or faster sums. Also written as the bare word: `determinism: relaxed`."""

    mode: Literal["bitwise", "relaxed"] = Field(
        default="bitwise",
        description="`bitwise`: the same bits with any number of workers; `relaxed`: torch's own "
        "all-reduce, every row still once, sums up to rounding.",
    )
    isa: Literal["avx2"] | None = Field(
        default=None,
        description="`avx2`: hold all workers to that instruction set, for machines that differ. null: each "
        "machine's own, all must agree.",
    )
    digest_every: Positive = Field(
        default=100,
        description="Steps between two digests of the state in the ledger; checkpoints have one too.",
    )

    @staticmethod
    def shorthand(value: Any) -> Any:
        """The bare word as the mapping it stands for; anything else unchanged."""
        return {"mode": value} if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _accept(cls, value: Any) -> Any:
        return cls.shorthand(value)
