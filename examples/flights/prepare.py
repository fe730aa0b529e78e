"""What is done to the rows of the CSV before anything is fitted or trained.

In: an Arrow table of some rows. Out: one with the same rows in the same order, no nulls in it, and `known`:
1 where the delay at arrival was measured, 0 where it was not. Such rows stay; the loss gives them no weight.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def prepare(table: pa.Table) -> pa.Table:
    known = pc.is_valid(table["arr_delay"])
    for name in ("dep_delay", "arr_delay"):
        filled = pc.cast(pc.fill_null(table[name], 0), pa.float32())
        table = table.set_column(table.schema.get_field_index(name), name, filled)
    return table.append_column("known", pc.cast(known, pa.float32()))
