"""Was every step published once, with the rows that the plan gives it, and every row used once per epoch?

In: a run's ledger, its spec and the footers of its data set. Out: differences, and what later checks need
(`Seen`). The plan is made anew from the spec; the sum over an epoch needs no plan. Must not know models or
checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from god_ray.errors import GodRayError
from god_ray.monitor.words import counted
from god_ray.plan import DataPlan, Manifest, epoch_checksum
from god_ray.plan.expected import step_checksums
from god_ray.runtime.findings import Findings
from god_ray.runtime.ledger_scan import Line, scan
from god_ray.runtime.run_folder import RunFolder
from god_ray.saying import Say, Ticker
from god_ray.spec import RunSpec

if TYPE_CHECKING:
    from god_ray.ingest.parquet import ParquetSource


@dataclass
class Seen:
    """What the ledger says. `digests`: by step, where one was taken."""

    last_step: int = 0
    epochs: int = 0
    digests: dict[int, str] = field(default_factory=dict)


def check_steps(folder: RunFolder, record: dict[str, Any], spec: RunSpec, found: Findings, say: Say) -> Seen:
    """Read the whole ledger, an epoch at a time."""
    train = _source(folder, spec, "train", record["data_fingerprint"], found)
    plan = _plan(record, spec, train, found)
    eval_rows = _eval_rows(folder, record, spec, train, found)
    seen, ticker = Seen(), Ticker("verifying", record["num_steps"], say, "steps", 1)
    for epoch, lines in _epochs(scan(folder.ledger, found), record["steps_per_epoch"]):
        seen.last_step = lines[-1].step
        seen.digests |= {line.step: line.digest for line in lines if line.digest}
        for line in lines:
            if eval_rows is not None and line.eval_rows not in (None, eval_rows):
                text = f"evaluated {line.eval_rows} rows, the evaluation set has {eval_rows}"
                found.differ("evaluation", f"step {line.step} {text}", line.step)
        if len(lines) == record["steps_per_epoch"]:
            seen.epochs += 1
            _whole_epoch(epoch, lines, record["num_rows"], found)
        if plan is not None:
            _rows(plan, epoch, lines, found)
        ticker.tick(seen.last_step)
    _held(seen, plan, record["num_rows"], found)
    return seen


def _held(seen: Seen, plan: DataPlan | None, num_rows: int, found: Findings) -> None:
    if not seen.last_step:
        found.skipped.append("no step has been published yet")
        return
    found.hold("ledger", f"{counted(seen.last_step, 'step')} published, each once, without gaps")
    if plan is not None:
        found.hold("rows", f"{counted(seen.last_step, 'step')} with the rows of the plan")
    if seen.epochs:
        text = f"each of {counted(num_rows, 'row')} was used once in {counted(seen.epochs, 'whole epoch')}"
        found.hold("epochs", f"{text}, by the measured checksums")


def _epochs(lines: Iterator[Line], steps_per_epoch: int) -> Iterator[tuple[int, list[Line]]]:
    """Lines grouped by the epoch that their step number puts them into."""
    epoch, group = 0, list[Line]()
    for line in lines:
        now = (line.step - 1) // steps_per_epoch
        if now != epoch and group:
            yield epoch, group
            group = []
        epoch = now
        group.append(line)
    if group:
        yield epoch, group


def _whole_epoch(epoch: int, lines: Sequence[Line], num_rows: int, found: Findings) -> None:
    """Needs no order, only the number of rows."""
    used = sum(line.num_rows for line in lines)
    measured = sum(line.row_checksum for line in lines) % 2**64
    where = f"epoch {epoch + 1} (steps {lines[0].step} to {lines[-1].step})"
    if used != num_rows:
        found.differ("epochs", f"{where} used {used} rows, the data set has {num_rows}")
    elif measured != (wanted := epoch_checksum(num_rows)):
        found.differ("epochs", f"{where} did not use each row once: checksum {measured}, not {wanted}")


def _rows(plan: DataPlan, epoch: int, lines: Sequence[Line], found: Findings) -> None:
    """Position, number of rows and row checksum of each step against the plan."""
    first = epoch * plan.steps_per_epoch + 1
    expected = step_checksums(plan.epoch(epoch), lines[-1].step - first + 1)
    for line in lines:
        place = line.step - first
        planned = (epoch, place, sum(plan.leaf_rows(place)), int(expected[place]))
        written = (line.epoch, line.step_in_epoch, line.num_rows, line.row_checksum)
        if written != planned:
            names = ("epoch", "step_in_epoch", "num_rows", "row_checksum")
            wrong = [
                f"{n} {a}, planned {b}" for n, a, b in zip(names, written, planned, strict=True) if a != b
            ]
            found.differ("rows", f"step {line.step} has {'; '.join(wrong)}", line.step)


def _plan(
    record: dict[str, Any], spec: RunSpec, train: ParquetSource | None, found: Findings
) -> DataPlan | None:
    """The run's plan. Shuffle "full" orders rows by their numbers alone, so it can do without the data."""
    data = spec.data
    assert data.shuffle != "auto", "decided when the run was created"
    if train is not None:
        manifest = train.manifest
    else:
        if data.shuffle != "full":
            found.skipped.append("rows per step: without the run's data the order of its rows is not known")
            return None
        groups = np.array([(0, 0, record["num_rows"])])
        manifest = Manifest.build(["the run's data"], groups, record["data_fingerprint"])
    sizes = data.window, data.min_leaf_rows
    return DataPlan(manifest, spec.batch_size, spec.lanes, spec.seed, data.shuffle, *sizes)


def _eval_rows(
    folder: RunFolder, record: dict[str, Any], spec: RunSpec, train: ParquetSource | None, found: Findings
) -> int | None:
    if spec.data.eval is None:
        return None
    source = _source(folder, spec, "eval", record["eval_fingerprint"], found, train)
    return None if source is None else source.manifest.num_rows


def _source(
    folder: RunFolder,
    spec: RunSpec,
    key: Literal["train", "eval"],
    fingerprint: str,
    found: Findings,
    like: ParquetSource | None = None,
) -> ParquetSource | None:
    """From the footers as they are now; None, and a difference, if that is not the run's data any more."""
    from god_ray.ingest.sources.opening import open_source
    from god_ray.runtime.assignment import conversion

    paths = getattr(spec.data, key)
    try:
        place = conversion(spec.data, folder.place)
        source = open_source(paths, spec.data.columns, place, allow_any=True, like=like)
    except GodRayError as error:
        found.differ("data", f"data.{key} cannot be compared with the run's: {error.what}")
        return None
    if source.manifest.fingerprint != fingerprint:
        now = f"now {source.manifest.num_rows} rows, fingerprint {source.manifest.fingerprint}"
        found.differ("data", f"data.{key} has changed since the run began: {now}; then {fingerprint}")
        return None
    return source
