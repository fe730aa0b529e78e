"""`init_from:` - the weights a new run starts with.

In: a path, or a mapping. Out: a frozen `InitFrom`. Must not look at the file: what is in it, and whether that
fits the model, is for `runtime` to say, before a run is made. A wrong value shows as a `Problem` under
`init_from.`.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from god_ray.spec.values import Flag, Section, Text


class InitFrom(Section):
    """Weights and buffers to start from; the optimizer and the schedule start anew. Also written as the bare
    path. null: the recipe's own.
    """

    path: Text = Field(
        examples=["runs/a"],
        description="A run's folder (its newest intact checkpoint, as of today), a checkpoint's "
        "(`.../checkpoints/step-00001200`), or a file: safetensors, or what `torch.save` made of a state "
        "dict or of a dict with one under `state_dict`, `model_state_dict`, `model` or `module`. A file's "
        "Python objects are never loaded. Prefixes of wrappers (`module.`, `_orig_mod.`, `model.`) are taken "
        "off the names where the names then fit.",
    )
    partial: Flag = Field(
        default=False,
        description="true: take the tensors whose name and shape fit, and leave the others as the recipe "
        "built them; `god-ray check`, the log and `god-ray status` name these. false: all must fit. Either "
        "way at least one must, and a cast to another dtype must change no value.",
    )

    @staticmethod
    def shorthand(value: Any) -> Any:
        """The bare path as the mapping it stands for; anything else unchanged."""
        return {"path": value} if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _accept(cls, value: Any) -> Any:
        return cls.shorthand(value)
