"""`data:` - which rows a run uses, in which order, and who reads them.

In: a mapping from the spec. Out: a frozen `Data`. Must not look at any file: whether paths and columns exist
is for `ingest` to say. A wrong value shows as a `Problem` under `data.`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from god_ray.spec.values import Columns, Positive, Section, Text, Texts


class Data(Section):
    """Which rows, in which order, read by whom."""

    train: Texts = Field(
        description="Training rows: Parquet files, folders or globs. A relative path starts at the spec's "
        "folder."
    )
    eval: Texts | None = Field(
        default=None, description="Rows for evaluation, given like `train`. null: the run is never evaluated."
    )
    columns: Columns | None = Field(default=None, description="The columns to read. null: all of them.")
    shuffle: Literal["auto", "full", "window", "none"] = Field(
        default="auto",
        description="Order of an epoch: `full` permutes all rows (the set is held in memory), `window` "
        "permutes inside windows of fragments, `none` keeps file order; `auto` is `full` while "
        "the set fits `memory_bytes`, else `window`.",
    )
    window: Positive = Field(
        default=8,
        description="Fragments (at most 16384 rows each) that are shuffled together when `shuffle` is "
        "`window`.",
    )
    preprocess: Text | None = Field(
        default=None,
        description="`file.py:function` that maps an Arrow block to a block with the same rows, run on the "
        "cluster's CPUs. null: none.",
    )
    reader: Literal["ray", "direct"] = Field(
        default="ray",
        description="`ray`: Ray Data carries the rows, but for those that a worker needs at once (a first "
        "window, the first 8 MB of a set held in memory); `direct`: each worker reads its own. The rows are "
        "the same.",
    )
    min_leaf_rows: Positive = Field(
        default=2,
        description="Smallest number of rows a lane may get in an epoch's last step; a smaller rest joins "
        "the step before it. 1: any.",
    )
    memory_bytes: Positive = Field(
        default=268_435_456,
        description="Decoded bytes. A set of up to this size is held in memory: `shuffle: auto` is `full`. "
        "Also bounds what a worker takes from Ray Data ahead of need. With `window` a worker holds two "
        "windows per lane, whatever this says.",
    )
