"""`data:` - which rows a run uses, in which order, and who reads them.

In: a mapping from the spec. Out: a frozen `Data`. Must not look at any file: whether paths and columns exist
is for `ingest` to say. A wrong value shows as a `Problem` under `data.`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from god_ray.spec.values import Columns, Fit, Nulls, Positive, Section, Text, Texts, Types


class Data(Section):
    """Which rows, in which order, read by whom."""

    train: Texts = Field(
        description="Training rows: files, folders or globs of one kind (Parquet, CSV, TSV, JSONL, Arrow, "
        "Feather), Parquet also by URI (`s3://bucket/*.parquet`), or `file.py:function` that returns them. "
        "What is not Parquet is converted once, beside the runs. A relative path starts at the spec's folder."
    )
    eval: Texts | None = Field(
        default=None, description="Rows for evaluation, given like `train`. null: the run is never evaluated."
    )
    columns: Columns | None = Field(default=None, description="The columns to read. null: all of them.")
    types: Types = Field(
        default_factory=dict,
        description="Types of columns of CSV, TSV and JSONL files, instead of what all their values say.",
    )
    nulls: Nulls = Field(
        default_factory=list,
        description="Texts of CSV and TSV files that mean null. An empty one always does, but for text.",
    )
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
    fit: Fit = Field(
        default_factory=dict,
        description="Columns, after `preprocess`, that become what all training rows say: `scale` makes "
        "numbers float32 of mean 0 and deviation 1, `categories` makes values int64 codes, `{vocabulary: N}` "
        "makes text the int32 numbers of its words, the N most frequent having one (0: padding, 1: another "
        "word). Kept with the run.",
    )
    cache: Literal["none", "disk"] = Field(
        default="none",
        description="`disk`: what `preprocess` and `fit` make of each row is written once, beside the runs, "
        "and read from there. The rows are the same.",
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
