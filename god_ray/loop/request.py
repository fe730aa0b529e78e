"""A command to a live run, as the loop understands it. Standard library only: `god-ray scale` needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """`kind` is "stop", or "resize" to `workers` workers."""

    kind: str
    workers: int = 0
