"""A model that needs what is fitted: codes for an embedding, a scaled number, words for a bag of words."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

import god_ray

Batch = dict[str, Tensor]


def prepare(table: pa.Table) -> pa.Table:
    """A row at a time: gaps of `x` are filled, and its square is added."""
    x = pc.fill_null(table["x"], 0.5)
    table = table.set_column(table.schema.get_field_index("x"), "x", x)
    return table.append_column("square", pc.multiply(x, x))


def collate(table: pa.Table) -> Batch:
    """Words padded to the longest text of the batch."""
    words = table["text"].to_pylist()
    width = max((len(row) for row in words), default=0)
    padded = [row + [0] * (width - len(row)) for row in words]
    columns = {name: torch.tensor(table[name].to_numpy().copy()) for name in ("x", "square", "kind", "y")}
    return {**columns, "text": torch.tensor(padded, dtype=torch.int64).reshape(len(words), width)}


class Net(nn.Module):
    def __init__(self, fitted: dict) -> None:
        super().__init__()
        self.kind = nn.Embedding(fitted["kind"].size, 3)
        self.word = nn.Embedding(fitted["text"].size, 4, padding_idx=0)
        self.out = nn.Linear(3 + 4 + 2, 1)

    def forward(self, batch: Batch) -> Tensor:
        numbers = torch.stack([batch["x"], batch["square"]], dim=1)
        words = self.word(batch["text"]).sum(dim=1)
        return self.out(torch.cat([self.kind(batch["kind"]), words, numbers], dim=1)).squeeze(1)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch) - batch["y"]).square().mean()


def metrics(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"off": (model(batch) - batch["y"]).abs()}


def build(config: dict, fitted: dict) -> god_ray.Recipe:
    model = Net(fitted)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return god_ray.Recipe(model, optimizer, loss, metrics=metrics, collate=collate)
