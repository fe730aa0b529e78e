"""Plain text for terminals and pipes: aligned tables and times. No colour, no control characters.

In: words. Out: lines. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns two blanks apart, as wide as their widest cell; the last one is not padded."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def pairs(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """One fact a line, the values below each other."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        yield f"{name.ljust(width)}  {value}".rstrip()


def when(at: float | None) -> str:
    """A unix second in local time."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def size(num_bytes: float) -> str:
    """Bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"
