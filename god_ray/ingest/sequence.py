"""In which order the windows of several lanes are needed.

In: a plan, a cursor, the worker's lanes. Out: `Need`s, merged over the lanes by the step that first uses
them, epoch after epoch. Pure arithmetic over the plan, made lazily. A wrong order shows as waits, never as
wrong rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import count

from god_ray.plan import Cursor, DataPlan, Window

Key = tuple[int, int, int]
"""(epoch, lane, index of the window)."""


@dataclass(frozen=True, slots=True)
class Need:
    epoch: int
    window: Window
    step: int
    """The step, counted through all epochs, that first uses a row of it."""

    @property
    def key(self) -> Key:
        return self.epoch, self.window.lane, self.window.index


def needs(plan: DataPlan, cursor: Cursor, lanes: Sequence[int], num_steps: int | None) -> Iterator[Need]:
    """All windows needed from the cursor on; without end unless `num_steps` is the run's last step."""
    streams = [_of_lane(plan, cursor, lane, num_steps) for lane in lanes]
    return merge(*streams, key=lambda need: (need.step, need.window.lane))


def _of_lane(plan: DataPlan, cursor: Cursor, lane: int, num_steps: int | None) -> Iterator[Need]:
    last = plan.steps_per_epoch - 1
    per_step = plan.leaf_rows(0)[lane] if last else 0
    if not any(plan.leaf_rows(step)[lane] for step in {0, last}):
        return
    position, _ = plan.lane_range(lane, cursor.step_in_epoch)
    now = cursor.epoch * plan.steps_per_epoch + cursor.step_in_epoch
    for epoch in count(cursor.epoch):
        for window in plan.epoch(epoch).windows(lane, position):
            in_epoch = min(window.start // per_step, last) if per_step else last
            step = max(epoch * plan.steps_per_epoch + in_epoch, now)
            if num_steps is not None and step >= num_steps:
                return
            yield Need(epoch, window, step)
        position = 0
