"""The model of `checkpoint.py`, and clocks in god_ray's loop: what a save makes a worker wait for, and when.

In: `config`: layer widths, steps from save to save, a path. Out: a Recipe; at the end of the loop, JSON at
path-<rank>. "still": seconds of each save, of all that the loop does because of it: looking for NaN, starting
the thread, waiting for digest and copy, the hand-over, waiting for an earlier save, the report to Ray Train.
"marks": (clock, processor time) when each save is due, whether it is done or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import recipe
import torch

import god_ray


def build(config: dict[str, Any]) -> god_ray.Recipe:
    from god_ray.loop.loop import Loop

    if not hasattr(Loop, "timed"):
        Loop.timed = True
        _time(Loop, config["times"], config["every"])
    model = recipe.network(config["widths"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return god_ray.Recipe(model=model, optimizer=optimizer, loss=recipe.loss)


def _time(loop: Any, times: str, every: int) -> None:
    still: list[float] = []
    marks: list[tuple[float, float]] = []

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            begin = perf_counter()
            try:
                return call(*args)
            finally:
                if still:
                    still[-1] += perf_counter() - begin

        return timed

    boundary, run = loop._boundary, loop._run

    def timed_boundary(self: Any, cursor: Any, *args: Any) -> Any:
        saved, begin = self.saved_at, perf_counter()
        if cursor.step % every == 0:
            marks.append((begin, process_time()))
        outcome = boundary(self, cursor, *args)
        if self.saved_at != saved:
            still.append(perf_counter() - begin)
        return outcome

    def timed_run(self: Any, *args: Any) -> Any:
        for port, name in (
            (self.reading, "digest"),
            (self.reading, "finish"),
            (self.checkpoints, "publish"),
            (self.reporter, "report"),
        ):
            setattr(port, name, counted(getattr(port, name)))
        outcome = run(self, *args)
        Path(f"{times}-{self.group.rank}").write_text(json.dumps({"still": still, "marks": marks}))
        return outcome

    loop._boundary, loop._run = timed_boundary, timed_run
