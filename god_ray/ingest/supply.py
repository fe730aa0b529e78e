"""What both kinds of feed are made of, together.

In: a source and its plan, who brings rows, the user's collate. Out: the same, as one value. Must not know
how a feed holds rows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from god_ray.ingest.carrier import Carrier, Counters, DirectCarrier
from god_ray.ingest.held import Collate
from god_ray.ingest.parquet import ParquetSource
from god_ray.plan import DataPlan


@dataclass(frozen=True)
class Supply:
    source: ParquetSource
    plan: DataPlan
    carrier: Carrier
    """For what is wanted later."""
    direct: DirectCarrier
    """For what is wanted now."""
    counters: Counters
    collate: Collate | None
    num_steps: int | None
    """Of the whole run, so that nothing is read beyond its end. None: endless."""
    changed: threading.Condition
    """Notified when something has come, is wanted, or is over."""
