"""A small language model: a recurrent net that says which word comes next.

In: `text`, the numbers of a paragraph's words (made by `data.fit`), padded in `collate`. Out: nats per word.
Paragraphs have different lengths, so the loss is (sum over words, number of words): each word counts the
same, in whichever lane and beside whatever padding it is.
"""

from __future__ import annotations

import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

import god_ray

PADDING = 0
MOST_WORDS = 64


class Language(nn.Module):
    def __init__(self, num_words: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, width, padding_idx=PADDING)
        self.dropout = nn.Dropout(dropout)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, num_words)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.memory(self.dropout(self.embedding(words)))
        return self.out(self.dropout(hidden))


def collate(table: pa.Table) -> dict[str, Tensor]:
    """To the longest row of the batch, at most MOST_WORDS."""
    rows = [row[:MOST_WORDS] for row in table["text"].to_pylist()]
    width = max(map(len, rows))
    padded = [row + [PADDING] * (width - len(row)) for row in rows]
    return {"text": torch.tensor(padded, dtype=torch.int64)}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    seen, following = batch["text"][:, :-1], batch["text"][:, 1:]
    off = functional.cross_entropy(
        model(seen).flatten(0, 1), following.flatten(), ignore_index=PADDING, reduction="sum"
    )
    return off, (following != PADDING).sum().float()


def metrics(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    return {"nats_per_word": loss(model, batch)}


def build(config: dict, fitted: dict) -> god_ray.Recipe:
    model = Language(fitted["text"].size, config["width"], config["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    return god_ray.Recipe(model, optimizer, loss, metrics=metrics, collate=collate)
