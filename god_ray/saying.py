"""Saying how far a long piece of work is, to whoever wants to know.

In: `say`, which takes a line of text; how much is done. Out: a line every few seconds, none for what is
quick. Must not know where lines go: that is the command's business. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

Say = Callable[[str], object]
EVERY_S = 2.0


def silent(text: str) -> None:
    pass


class Ticker:
    """`tick` says "doing X: 12 of 80 MB" now and then, nothing for what is quick."""

    def __init__(self, doing: str, total: int, say: Say, unit: str = "MB", scale: int = 1_000_000) -> None:
        self._doing, self._total, self._say, self._unit, self._scale = doing, total, say, unit, scale
        self._next = monotonic() + EVERY_S

    def tick(self, done: int) -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        self._say(f"{self._doing}: {done // self._scale} of {self._total // self._scale} {self._unit}")
