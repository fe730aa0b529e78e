"""What is not Parquet becomes Parquet once: `opening.open_source` is the door.

In: what a spec names as data. Out: a `ParquetSource`, over the files themselves or over a prepared copy of
them. Nothing downstream knows the difference. Must not know plans, recipes or Ray's cluster.
"""
