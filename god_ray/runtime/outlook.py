"""What a run will do, before it is started: rows, steps, lanes, time and memory, and what looks unwise about
them.

In: an assignment, and what a trial measured. Out: facts under stable keys, warnings in words. Nothing here
fails.
"""

from __future__ import annotations

from typing import Any

from god_ray.runtime.assignment import Assignment
from god_ray.runtime.room import room

SMALL_LEAF_ROWS = 16
"""Below this, statistics over a leaf (BatchNorm) are noise more than anything."""

LARGE_WINDOWS = 4
"""Times `data.memory_bytes`."""


def expect(assignment: Assignment, facts: dict[str, Any], warnings: list[str]) -> None:
    """What follows from spec and footers alone."""
    spec, plan, train = assignment.spec, assignment.plan(), assignment.train
    steps = plan.steps
    facts |= {
        "rows": train.manifest.num_rows,
        "row_bytes": train.row_bytes,
        "files": len(train.manifest.files),
        "fragments": train.manifest.num_fragments,
        "eval_rows": assignment.evaluation.manifest.num_rows if assignment.evaluation else None,
        "shuffle": spec.data.shuffle,
        "batch_size": spec.batch_size,
        "lanes": spec.lanes,
        "workers": {"min": spec.workers.min, "max": spec.workers.max},
        "steps_per_epoch": plan.steps_per_epoch,
        "num_steps": assignment.num_steps,
        "rows_per_lane": list(steps.full),
        "rows_per_lane_last_step": list(steps.last),
    }
    if assignment.num_steps < plan.steps_per_epoch:
        text = f"the run ends after {assignment.num_steps} steps, within its first epoch"
        warnings.append(f"{text} of {plan.steps_per_epoch}")
    if spec.checkpoint.every_steps is None and spec.checkpoint.every_s is None:
        warnings.append("checkpoints are written at the end only; a killed run starts over")
    if spec.data.shuffle == "none":
        warnings.append("data.shuffle is none: every epoch goes through the rows in the order of the files")


def after(assignment: Assignment, facts: dict[str, Any], warnings: list[str]) -> None:
    """What follows from the trial."""
    spec, train = assignment.spec, assignment.train.manifest
    step_s = facts["step_s"]
    facts["rows_per_s"] = spec.batch_size / step_s
    facts["run_s"] = step_s * assignment.num_steps
    facts["memory_bytes"]["data"] = held_bytes = _data_bytes(assignment)
    if spec.data.shuffle != "full" and held_bytes > LARGE_WINDOWS * spec.data.memory_bytes:
        text = f"windows hold about {held_bytes:,} bytes, all lanes together: "
        text += f"2 for each lane, of {spec.data.window} fragments of up to {int(train.rows.max())} rows"
        warnings.append(f"{text}; lower data.window, or write row groups of fewer rows")
    disk = room(spec, facts["memory_bytes"]["checkpoint_copy"])
    facts["checkpoint_bytes"] = {"each": disk.checkpoint, "needed": disk.needed, "free": disk.free}
    warnings += [disk.warning] if disk.warning else []
    leaf = min(rows for rows in (*facts["rows_per_lane"], *facts["rows_per_lane_last_step"]) if rows)
    if facts["batch_norm"] and leaf < SMALL_LEAF_ROWS:
        text = f"BatchNorm sees one leaf at a time, and the smallest leaf has {leaf} rows"
        warnings.append(f"{text}; use fewer lanes, a larger batch, or GroupNorm or LayerNorm")
    if facts["unused_parameters"]:
        names = ", ".join(facts["unused_parameters"][:5])
        more = (
            f" and {len(facts['unused_parameters']) - 5} more" if len(facts["unused_parameters"]) > 5 else ""
        )
        warnings.append(f"no gradient in the step that was tried: {names}{more}")


def _data_bytes(assignment: Assignment) -> int:
    """Decoded rows in memory: the whole set, or two windows for each lane, all of them with one worker."""
    data, train = assignment.spec.data, assignment.train
    if data.shuffle == "full":
        return train.decoded_bytes
    rows = 2 * assignment.spec.lanes * data.window * int(train.manifest.rows.max())
    return min(rows, train.manifest.num_rows) * train.row_bytes
