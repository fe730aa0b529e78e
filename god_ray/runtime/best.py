"""Which checkpoint is the best one, by `checkpoint.keep_best`.

In: a store and the rule. Out: a step, or None when there is no rule or no value. The earlier of equals wins,
NaN never does. Used by retention and by `export --best`, so that both mean the same one.
"""

from __future__ import annotations

import math

from god_ray.checkpoint.store import CheckpointStore
from god_ray.spec.progress import KeepBest


def best_step(store: CheckpointStore, rule: KeepBest | None) -> int | None:
    """The best step whose evaluation has the rule's metric."""
    if rule is None:
        return None
    values = {step: (store.meta(step).get("eval") or {}).get(rule.metric) for step in store.steps()}
    usable = {s: v for s, v in values.items() if isinstance(v, int | float) and not math.isnan(v)}
    sign = -1 if rule.mode == "max" else 1
    return min(usable, key=lambda step: (sign * usable[step], step), default=None)
