"""The first rows of a data set as one global batch, held in memory, to try things on.

In: a source, a number of rows. Out: a plan over those rows and a feed that hands out its leaves again and
again. Reads no more than these rows, through the same preprocess and collate as training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from god_ray.ingest.feed import open_feed
from god_ray.ingest.held import Collate, Leaf
from god_ray.ingest.parquet import ParquetSource
from god_ray.plan import Cursor, DataPlan, Manifest


def head(source: ParquetSource, num_rows: int) -> ParquetSource:
    """The source's first `num_rows` rows; their global numbers stay."""
    whole = source.manifest
    count = int(np.searchsorted(whole.start, num_rows, side="left"))
    rows = whole.rows[:count].copy()
    rows[-1] -= int(whole.start[count]) - num_rows
    parts = whole.file[:count], whole.group[:count], whole.offset[:count]
    return replace(source, manifest=Manifest(whole.files, *parts, rows, whole.fingerprint))


class SampleFeed:
    """A feed over one step: a lane has one leaf whatever the cursor, and every caller its own copy."""

    def __init__(
        self,
        source: ParquetSource,
        plan: DataPlan,
        preprocess: Callable[..., Any] | None,
        collate: Collate | None,
    ) -> None:
        self.counters: dict[str, Any] = {}
        feed = open_feed(source, plan, reader="direct", preprocess=preprocess, collate=collate)
        try:
            self._leaves = [feed.leaf(plan.cursor_at(0), lane) for lane in range(plan.lanes)]
        finally:
            feed.close()

    def start(self, cursor: Cursor, lanes: range) -> None:
        return None

    def leaf(self, cursor: Cursor, lane: int) -> Leaf | None:
        held = self._leaves[lane]
        return held and replace(held, batch={name: value.clone() for name, value in held.batch.items()})

    def close(self) -> None:
        return None


def sample(
    source: ParquetSource,
    num_rows: int,
    lanes: int,
    preprocess: Callable[..., Any] | None,
    collate: Collate | None,
) -> tuple[DataPlan, SampleFeed]:
    """The first rows as one step over `lanes` lanes."""
    few = head(source, num_rows)
    plan = DataPlan(few.manifest, num_rows, lanes, 0, "none", 1, 1)
    return plan, SampleFeed(few, plan, preprocess, collate)
