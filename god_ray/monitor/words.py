"""A ledger record in words, as wide as there is room.

In: a record and what is known beside it. Out: text. Pure; knows no stream and no clock. Nothing here fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What a narrow terminal goes without, first one first; step, loss and ETA stay.
_EXPENDABLE = ("workers", "checkpoint", "rate", "epoch")


@dataclass(frozen=True)
class Facts:
    """What a record does not say. None: not known yet."""

    num_steps: int
    num_epochs: int
    rows_per_s: float | None
    eta_s: float | None
    checkpoint_age_s: float | None


def fields(record: Mapping[str, Any], facts: Facts) -> dict[str, str]:
    """The parts of a progress line, in order."""
    parts = {"step": f"step {record['step']}/{facts.num_steps}"}
    if "epoch" in record:
        parts["epoch"] = f"epoch {record['epoch'] + 1}/{facts.num_epochs}"
    if record.get("loss") is not None:
        parts["loss"] = f"loss {number(record['loss'])}"
    if facts.rows_per_s is not None:
        parts["rate"] = f"{_count(facts.rows_per_s)} rows/s"
    if record.get("num_workers"):
        parts["workers"] = counted(record["num_workers"], "worker")
    if facts.eta_s is not None and record["step"] < facts.num_steps:
        parts["eta"] = f"ETA {duration(facts.eta_s)}"
    if facts.checkpoint_age_s is not None:
        parts["checkpoint"] = f"checkpoint {duration(facts.checkpoint_age_s)} ago"
    return parts


def fit(parts: Mapping[str, str], width: int) -> str:
    """As many of the parts as fit on one line of `width`."""
    left = dict(parts)
    for name in (None, *_EXPENDABLE):
        left.pop(name or "", None)
        for gap in ("  ", " "):
            line = gap.join(left.values())
            if len(line) <= width:
                return line
    return clip(line.removeprefix("step "), width)


def evaluation(record: Mapping[str, Any], num_epochs: int) -> str:
    """The line of a step whose record holds an evaluation."""
    values = dict(record["eval"])
    rows = values.pop("num_rows", None)
    where = [f"epoch {record['epoch'] + 1}/{num_epochs}"] if "epoch" in record else []
    what = [f"{name} {number(value)}" for name, value in values.items()]
    over = [f"({counted(rows, 'row')})"] if rows is not None else []
    return "  ".join(["eval", *where, f"step {record['step']}", *what, *over])


def number(value: Any) -> str:
    """Four significant digits; "NaN" and "Infinity" are how a ledger spells what JSON cannot."""
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return str(float(value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things; `many` where it is not `one` and an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    total = max(0, round(seconds))
    days, rest = divmod(total, 86400)
    hours, minutes, left = rest // 3600, rest % 3600 // 60, rest % 60
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{left:02}s" if minutes else f"{left}s"


def clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def printable(text: str) -> str:
    """Without control characters, whatever a metric was named."""
    return "".join(char if char.isprintable() else " " for char in text)


def _count(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.0f}"
