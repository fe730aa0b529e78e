"""Decoded rows held in memory, and gathering batches out of them.

In: tables as they are read. Out: `Held` blocks; `gather` copies chosen rows out of one or several into a
batch. A batch shares no memory with the block: a recipe may write into it, and what an audit or a retry reads
stays the same. Must not know plans, files or Ray. A collate that fails shows as a `RecipeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from god_ray.errors import RecipeError
from god_ray.ingest.columns import ROW, hidden_column
from god_ray.ingest.tensors import Array, array_columns
from god_ray.ingest.userfunction import function_name, source_file
from god_ray.plan import checksum, row_hash

Collate = Callable[[pa.Table], dict[str, Tensor]]
Index = NDArray[np.int64]


@dataclass(slots=True)
class Leaf:
    """One lane's rows of one step, in training order."""

    batch: dict[str, Tensor]
    """By column, on the CPU; the first dimension is the row."""
    rows: NDArray[np.int64]
    """Their global numbers, as they were read with them."""
    checksum: int
    """Sum of their 64-bit hashes modulo 2**64."""


class Held(Protocol):
    """A block of rows, by place in reading order."""

    num_rows: int

    def gather(self, index: Index) -> Leaf: ...

    def gather_across(self, parts: Sequence[tuple[Held, Index]]) -> Leaf:
        """One leaf out of several blocks of this kind."""
        ...


class HeldTensors:
    """Columns as arrays."""

    def __init__(self, columns: dict[str, Array], rows: NDArray[np.int64]) -> None:
        self.columns, self.rows, self.num_rows = columns, rows, len(rows)
        self._hashes = row_hash(rows)

    @classmethod
    def of(cls, table: pa.Table) -> HeldTensors:
        columns = array_columns(table)
        for name, array in columns.items():
            if table.column(name).num_chunks == 1:  # a view, perhaps of Ray's object store
                columns[name] = array.copy()
        return cls(columns, hidden_column(table, ROW).copy())

    def gather(self, index: Index) -> Leaf:
        batch = {name: torch.from_numpy(array.take(index, 0)) for name, array in self.columns.items()}
        return Leaf(batch, self.rows.take(index), checksum(self._hashes.take(index)))

    def gather_across(self, parts: Sequence[tuple[Held, Index]]) -> Leaf:
        leaves = [held.gather(index) for held, index in parts]
        batch = {name: torch.cat([leaf.batch[name] for leaf in leaves]) for name in self.columns}
        rows = np.concatenate([leaf.rows for leaf in leaves])
        return Leaf(batch, rows, checksum(row_hash(rows)))


class HeldTable:
    """Columns as Arrow, given to the recipe's collate batch by batch."""

    def __init__(self, table: pa.Table, collate: Collate) -> None:
        self.table = table.combine_chunks()
        self.num_rows, self._collate = table.num_rows, collate

    def gather(self, index: Index) -> Leaf:
        return self._leaf(self.table.take(pa.array(index)))

    def gather_across(self, parts: Sequence[tuple[Held, Index]]) -> Leaf:
        taken = [held.table.take(pa.array(index)) for held, index in parts if isinstance(held, HeldTable)]
        return self._leaf(pa.concat_tables(taken))

    def _leaf(self, table: pa.Table) -> Leaf:
        rows = hidden_column(table, ROW).copy()
        return Leaf(collated(self._collate, table.drop_columns([ROW])), rows, checksum(row_hash(rows)))


def hold(table: pa.Table, collate: Collate | None) -> Held:
    return HeldTensors.of(table) if collate is None else HeldTable(table, collate)


def collated(collate: Collate, table: pa.Table) -> dict[str, Tensor]:
    """The recipe's batch, checked: a dict of tensors with one entry per row. Raises RecipeError."""
    name = function_name(collate)
    file = source_file(collate)
    with file.blame(f"the recipe's collate, {name}(table)"):
        batch = collate(table)
    wrong = _fault(batch, table.num_rows)
    if wrong:
        raise RecipeError(
            f"{file.where(collate)}: {name}(table) returned {wrong}",
            "A batch is a dict of tensors by column; the first dimension is the row.",
            "return {name: tensor} with one entry per row of the table, in its order",
        )
    return batch


def _fault(batch: object, num_rows: int) -> str:
    if not isinstance(batch, dict):
        return f"a {type(batch).__name__}"
    if not batch:
        return "an empty dict"
    for key, value in batch.items():
        if not isinstance(value, Tensor):
            return f"a {type(value).__name__} for {key!r}"
        if value.dim() == 0 or len(value) != num_rows:
            return f"a tensor of shape {tuple(value.shape)} for {key!r}, from {num_rows} rows"
    return ""
