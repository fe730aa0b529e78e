"""`RunSpec`: everything a run is made from besides the recipe and the data, with every default and its
meaning.

In: plain values (`load.py` brings them from YAML, `--set` and Python). Out: one frozen object. Rules between
keys are in `rules.py`: use `god_ray.spec.load`, which applies them, not this class, on what a user wrote.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from god_ray.spec.data import Data
from god_ray.spec.determinism import Determinism
from god_ray.spec.progress import Checkpoint, Eval, StopWhen
from god_ray.spec.sweep import Sweep
from god_ray.spec.values import Above0, Count, Flag, Name, Positive, Says, Section, Seed, Text
from god_ray.spec.warmstart import InitFrom
from god_ray.spec.workers import Failures, Workers


class RunSpec(Section):
    """The keys of a run spec."""

    recipe: Text = Field(
        examples=["recipe.py"],
        description="Python file with `build(config) -> god_ray.Recipe`. A relative path starts at the "
        "spec's folder.",
    )
    data: Data = Field(description="Which rows, in which order, read by whom.")
    batch_size: Positive = Field(
        examples=[256],
        description="Rows of one step over all workers; part of the result. At least `lanes * "
        "data.min_leaf_rows`.",
    )
    epochs: Count | None = Field(
        examples=[10],
        default=None,
        description="Train for so many passes over the data. Exactly one of `epochs` and `steps`.",
    )
    steps: Count | None = Field(
        examples=[1000],
        default=None,
        description="Train for so many optimizer updates. Exactly one of `epochs` and `steps`.",
    )
    name: Name | None = Field(
        default=None, description="Name of the run, also its folder's. null: one is made when it starts."
    )
    config: Annotated[dict[str, Any], Says("a mapping of free values", "{}")] = Field(
        default_factory=dict, description="Free values that are handed to the recipe's `build(config)`."
    )
    lanes: Positive = Field(
        examples=[4],
        default=4,
        description="Fixed slices of every batch; part of the result, and the most workers a run can use.",
    )
    workers: Annotated[Workers, Says("N, MIN:MAX or a mapping of min, max, cpus, gpus", "2")] = Field(
        default_factory=Workers, description="How many worker processes, and what each asks of the cluster."
    )
    seed: Seed = Field(
        default=0, description="Start of every random number: order of rows, weights, dropout."
    )
    clip_norm: Above0 | None = Field(
        default=None, description="Scale the gradient down to this L2 norm when it is longer. null: never."
    )
    eval: Eval = Field(default_factory=Eval, description="When the run is evaluated on `data.eval`.")
    stop_when: StopWhen | None = Field(
        default=None, description="Early stopping, decided from the evaluation. null: train to the end."
    )
    checkpoint: Checkpoint = Field(
        default_factory=Checkpoint, description="When the state is saved, and how much is kept."
    )
    init_from: Annotated[InitFrom, Says("text or a mapping of path, partial", "runs/a")] | None = Field(
        default=None,
        description="Weights to start from: a run, a checkpoint or a file. null: the recipe's own.",
    )
    precision: Literal["fp32", "bf16-mixed"] = Field(
        default="fp32",
        description="`fp32`: float32 throughout; `bf16-mixed`: forward and backward in bfloat16, weights in "
        "float32.",
    )
    compile: Flag = Field(
        default=False, description="Compile the model with torch.compile (`dynamic=False`)."
    )
    determinism: Annotated[
        Determinism, Says("`bitwise`, `relaxed` or a mapping of mode, isa, digest_every", "bitwise")
    ] = Field(default_factory=Determinism, description="Same bits whatever happens, or faster sums.")
    storage: Text = Field(
        default="./runs",
        description="Where runs are kept: a folder that all nodes share, or `s3://bucket/prefix`. A relative "
        "path starts at the folder the command runs in.",
    )
    failures: Failures = Field(
        default_factory=Failures, description="How often a run may lose workers before it gives up."
    )
    sweep: Sweep | None = Field(
        default=None, description="Many runs of this spec with other values (`god-ray sweep`). null: none."
    )
