"""Rows from files to tensors, following a plan: `parquet.ParquetSource` and `feed.open_feed`.

In: paths and a `DataPlan`. Out: leaves. Must not know workers, models or the exchange. Ray is imported in
`raydata.py` only, when a feed is opened with reader="ray". Nothing is imported here, because Ray's read tasks
use the reading half of this room without torch.
"""
