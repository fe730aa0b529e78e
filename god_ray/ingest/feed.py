"""The door to the data: leaves of a plan, whoever reads them and however much fits into memory.

In: a source, a plan, who reads ("ray" or "direct"), the user's preprocess and collate. Out: a `Feed`. Must
not know workers or models. Failures of reading come out of `Feed.leaf`.
"""

from __future__ import annotations

import threading
from typing import Literal, Protocol

from god_ray.ingest.carrier import Carrier, Counters, DirectCarrier, new_counters
from god_ray.ingest.held import Collate, Leaf
from god_ray.ingest.memory_feed import MemoryFeed, read_at_once
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.supply import Supply
from god_ray.ingest.tasks import Preprocess
from god_ray.ingest.window_feed import WindowFeed
from god_ray.plan import Cursor, DataPlan

LOAD_PATIENCE_S = 2.0
"""How long a worker that waits for the whole set lets nothing arrive before it reads the rest itself."""


class Feed(Protocol):
    """Used from one thread."""

    counters: Counters

    def start(self, cursor: Cursor, lanes: range) -> None:
        """Go to the cursor and begin to read ahead for these lanes. Returns at once. May be called again."""
        ...

    def leaf(self, cursor: Cursor, lane: int) -> Leaf | None:
        """The lane's rows of that step, None if it has none. Blocks until they are there.

        Fast when each lane's steps come in turn; any other leaf (audit, replay) is read on the spot. The
        batch is the caller's own copy. Raises what reading, preprocess or collate raised.
        """
        ...

    def close(self) -> None: ...


def open_feed(
    source: ParquetSource,
    plan: DataPlan,
    *,
    reader: Literal["ray", "direct"],
    preprocess: Preprocess | None = None,
    collate: Collate | None = None,
    memory_bytes: int = 1 << 28,
    num_steps: int | None = None,
    patience_s: float = LOAD_PATIENCE_S,
) -> Feed:
    """A feed over the plan.

    reader: "ray" needs an initialised Ray. memory_bytes: bound on what is taken from Ray ahead of need.
    num_steps: steps of the whole run, so that nothing is read beyond its end. patience_s: see above.
    """
    counters = new_counters()
    changed = threading.Condition()
    direct = DirectCarrier(source.reader, preprocess, counters)
    carrier: Carrier = direct
    if reader == "ray" and not read_at_once(source, plan):
        from god_ray.ingest.raydata import RayCarrier

        carrier = RayCarrier(source, preprocess, direct, counters, changed, memory_bytes, plan.lanes)
    supply = Supply(source, plan, carrier, direct, counters, collate, num_steps, changed)
    return MemoryFeed(supply, patience_s) if plan.shuffle == "full" else WindowFeed(supply)
