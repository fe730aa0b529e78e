"""Rows from files to tensors, following a plan: sources, feeds, and Ray Data as the carrier.

In: paths and a `DataPlan`. Out: `ParquetSource` and `Feed`s. Must not know workers, models or the exchange.
Ray is imported in `raydata.py` only, when a feed is opened with reader="ray".
"""

from god_ray.ingest.columns import ROW
from god_ray.ingest.feed import Feed, open_feed
from god_ray.ingest.held import Leaf
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.survey import Fault, missing_columns
from god_ray.ingest.tensors import tensor_columns

__all__ = ["ROW", "Fault", "Feed", "Leaf", "ParquetSource", "missing_columns", "open_feed", "tensor_columns"]
