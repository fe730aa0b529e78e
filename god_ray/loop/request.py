"""A command to a live run, as the loop understands it.

In: a kind and a number. Out: one frozen record. Standard library only, so that `god-ray scale` needs no
torch. A command that the loop does not know cannot be made.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """`kind` is "stop", or "resize" to `workers` workers."""

    kind: str
    workers: int = 0
