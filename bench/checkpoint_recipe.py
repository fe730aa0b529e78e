"""The model of `checkpoint.py`, and a clock in god_ray's loop: how long a worker stands still for each save.

In: `config`: layer widths, a path. Out: a Recipe; at the end of the loop a JSON list of seconds at
path-<rank>. Counted is what the loop does because of a checkpoint: looking for NaN, the digest, the copy, the
hand-over, waiting for an earlier save, the report to Ray Train.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import recipe
import torch

import god_ray


def build(config: dict[str, Any]) -> god_ray.Recipe:
    from god_ray.loop.loop import Loop

    if not hasattr(Loop, "timed"):
        Loop.timed = True
        _time(Loop, config["times"])
    model = recipe.network(config["widths"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return god_ray.Recipe(model=model, optimizer=optimizer, loss=recipe.loss)


def _time(loop: Any, times: str) -> None:
    seconds: list[float] = []

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            begin = perf_counter()
            try:
                return call(*args)
            finally:
                if seconds:
                    seconds[-1] += perf_counter() - begin

        return timed

    boundary, run = loop._boundary, loop._run

    def timed_boundary(self: Any, *args: Any) -> Any:
        saved, begin = self.saved_at, perf_counter()
        outcome = boundary(self, *args)
        if self.saved_at != saved:
            seconds.append(perf_counter() - begin)
        return outcome

    def timed_run(self: Any, *args: Any) -> Any:
        self.checkpoints.publish = counted(self.checkpoints.publish)
        self.reporter.report = counted(self.reporter.report)
        outcome = run(self, *args)
        Path(f"{times}-{self.group.rank}").write_text(json.dumps(seconds))
        return outcome

    loop._boundary, loop._run = timed_boundary, timed_run
