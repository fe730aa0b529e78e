"""Statistics of a training set: what its rows say, once, whoever reads them.

In: tables in the order of the fragments and what is wanted of which column. Out: `Fitted`. Each fragment is
summed up by itself and the sums are joined in order, in float64 and exactly rounded, so the number of tasks,
processes and machines does not show. What cannot be fitted shows as a DataError with file and column.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from god_ray.errors import DataError
from god_ray.ingest.fitted import (
    Categories,
    Fitted,
    Scale,
    Statistic,
    Vocabulary,
    column_to_fit,
    refused,
    words,
)

MAX_CATEGORIES = 1_000_000
Wanted = Mapping[str, Any]
"""As in `data.fit`: "scale", "categories" or {"vocabulary": N} by column."""


def kind_of(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else "vocabulary"


def summary(table: pa.Table, wanted: Wanted, where: str) -> str:
    """A fragment's part as JSON, so that it can travel as text."""
    parts: dict[str, Any] = {}
    for name, statistic in wanted.items():
        kind = kind_of(statistic)
        column = column_to_fit(table, name, kind, where)
        if kind == "scale":
            parts[name] = _moments(column, name, where)
        elif kind == "categories":
            parts[name] = column.unique().to_pylist()
        else:
            parts[name] = Counter(word for text in column.to_pylist() for word in words(text))
    return json.dumps(parts)


def _moments(column: pa.ChunkedArray, name: str, where: str) -> tuple[int, float, float]:
    """Count, mean, sum of squared distances from it."""
    values = np.asarray(column.to_numpy(), dtype=np.float64)
    if wrong := int((~np.isfinite(values)).sum()):
        what = f"column {name} holds {wrong} values that are infinite or not numbers"
        raise refused(where, what, "They have no mean.", "replace them in data.preprocess", name)
    first = values[0]  # taken away, so that the mean of equal values is exactly theirs
    try:
        with np.errstate(over="ignore"):
            mean = first + math.fsum(values - first) / len(values)
            squares = math.fsum((values - mean) ** 2)
    except (OverflowError, ValueError):  # told once all is joined
        return len(values), 0.0, math.inf
    if squares == 0 and (values != first).any():
        return len(values), 0.0, math.inf
    return len(values), mean, squares


def join(summaries: Iterable[str], wanted: Wanted) -> Fitted:
    """All fragments' parts, in the order of the fragments."""
    held: dict[str, Any] = {}
    for text in summaries:
        for name, part in json.loads(text).items():
            kind = kind_of(wanted[name])
            if kind == "scale":
                held[name] = _together(held[name], part) if name in held else part
            elif kind == "categories":
                held.setdefault(name, set()).update(part)
                _refuse_too_many(name, held[name])
            else:
                held.setdefault(name, Counter()).update(part)
    return {name: _finished(name, held[name], wanted[name]) for name in wanted}


def _together(a: tuple[int, float, float], b: tuple[int, float, float]) -> tuple[int, float, float]:
    """Chan, Golub and LeVeque (1979): moments of a joined set."""
    count, apart = a[0] + b[0], b[1] - a[1]
    square = apart * apart
    if apart and not square:
        square = math.inf  # too small for a float
    return count, a[1] + apart * b[0] / count, a[2] + b[2] + square * a[0] * b[0] / count


def _refuse_too_many(name: str, values: set[Any]) -> None:
    if len(values) > MAX_CATEGORIES:
        raise DataError(
            f"column {name} has more than {MAX_CATEGORIES} categories.",
            "Each would have a code of its own.",
            "leave it out, or map it to fewer values in data.preprocess",
            column=name,
        )


def _finished(name: str, held: Any, wanted: Any) -> Statistic:
    kind = kind_of(wanted)
    if kind == "scale":
        count, mean, squares = held
        if not (math.isfinite(mean) and math.isfinite(squares)):
            raise DataError(
                f"column {name} holds numbers too far apart, or too close, to be scaled.",
                "The squares of their distances from the mean are beyond float64.",
                "bring them into a usual range in data.preprocess",
                column=name,
            )
        return Scale(mean, math.sqrt(squares / count))
    if kind == "categories":
        return Categories(tuple(sorted(held)))
    frequent = sorted(held, key=lambda word: (-held[word], word))
    return Vocabulary(tuple(frequent[: wanted["vocabulary"]]))
