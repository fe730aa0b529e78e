"""Are two runs the same, step by step? `god-ray verify RUN --against OTHER`.

In: two run folders. Out: the first difference at a common step, with what differs between the runs beside
it, or what was found equal. Runs of `determinism: relaxed` must agree on rows exactly and on the loss within
LOSS_TOLERANCE.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from god_ray.errors import RunFailed
from god_ray.monitor.ledger import ROWS, Ledger
from god_ray.runtime.findings import Findings
from god_ray.runtime.run_folder import RunFolder

LOSS_TOLERANCE = 1e-3
"""Relative. Sums in another order round differently, and training carries that on."""
_EXACT = (*ROWS, "lr", "loss", "grad_norm")
_IF_BOTH = ("digest", "eval")
# What a run may differ in and still be the same: none of it is part of the result.
_FREE = (
    "name",
    "workers",
    "storage",
    "failures",
    "checkpoint",
    "sweep",
    "data.reader",
    "determinism.digest_every",
)


def compare(folder: RunFolder, other: RunFolder, found: Findings) -> None:
    """Go through the steps that both have; stop at the first difference."""
    mine, theirs = folder.read(), other.read()
    relaxed = "relaxed" in (mine["spec"]["determinism"]["mode"], theirs["spec"]["determinism"]["mode"])
    steps = digests = 0
    longer = 0
    try:
        for a, b in zip_longest(Ledger.read(folder.ledger), Ledger.read(other.ledger)):
            if a is None or b is None:
                longer += 1
                continue
            wrong = _first_difference(a, b, relaxed)
            if wrong is not None:
                key, ours, its = wrong
                because = _because(mine, theirs)
                text = (
                    f"step {a['step']}: {key} is {ours} in {folder.name} and {its} in {other.name}{because}"
                )
                found.differ("against", text, a["step"])
                return
            steps += 1
            digests += "digest" in a and "digest" in b
    except RunFailed as error:
        found.differ("against", f"the ledgers cannot be compared: {error.what}, {error.why}")
        return
    if not steps:
        found.differ("against", f"{folder.name} and {other.name} have no step in common")
    how = (
        f"rows equal, losses within {LOSS_TOLERANCE:g}" if relaxed else f"equal, {digests} digests among them"
    )
    found.hold("against", f"{steps} steps in common with {other.name}: {how}")
    if longer:
        found.skipped.append(f"{longer} steps that only one of {folder.name} and {other.name} has")


def _first_difference(
    a: Mapping[str, Any], b: Mapping[str, Any], relaxed: bool
) -> tuple[str, Any, Any] | None:
    keys = (*ROWS, "loss") if relaxed else (*_EXACT, *(key for key in _IF_BOTH if a.get(key) and b.get(key)))
    for key in keys:
        ours, theirs = a.get(key), b.get(key)
        if ours != theirs and not (relaxed and key == "loss" and _close(ours, theirs)):
            return key, ours, theirs
    return None


def _close(a: Any, b: Any) -> bool:
    """The ledger spells NaN and infinities as text, which `float` reads."""
    x, y = float(a), float(b)
    return math.isclose(x, y, rel_tol=LOSS_TOLERANCE) or (math.isnan(x) and math.isnan(y))


def _because(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """What else is not the same, as far as it can change the result."""
    pairs = [("data", mine["data_fingerprint"], theirs["data_fingerprint"])]
    ours, its = dict(_flat(mine["spec"], "")), dict(_flat(theirs["spec"], ""))
    free = tuple(key + end for key in _FREE for end in ("", "."))
    pairs += [
        (key, ours.get(key), its.get(key)) for key in sorted(ours.keys() | its.keys()) if not _free(key, free)
    ]
    here, there = mine.get("fingerprint") or {}, theirs.get("fingerprint") or {}
    pairs += [(key, here.get(key), there.get(key)) for key in sorted(here.keys() | there.keys())]
    told = [f"{key} ({a}, {b})" for key, a, b in pairs if a != b]
    return f"; the runs also differ in {', '.join(told)}" if told else ""


def _free(key: str, free: tuple[str, ...]) -> bool:
    return key in free or any(end.endswith(".") and key.startswith(end) for end in free)


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value
