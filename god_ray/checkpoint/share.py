"""Which tensors of a state a worker saves, and what it tells the one who puts the checkpoint together.

In: names and sizes, the number of workers. Out: contiguous shares of about equal bytes, the same on every
worker. Must not know files, except by name. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Number `index` of `count`, from 0."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index + 1}of{self.count}"

    def of(self, sizes: Mapping[str, int]) -> set[str]:
        """The names that are this share's: those whose middle byte lies in its part of all bytes."""
        total, before, names = max(sum(sizes.values()), 1), 0, set()
        for name, size in sizes.items():
            middle = 2 * before + max(size, 1)
            if min(middle * self.count // (2 * total), self.count - 1) == self.index:
                names.add(name)
            before += size
        return names


WHOLE = Share(0, 1)
