"""The Python front door: `god_ray.train(spec) -> Result`, and what the commands `train` and `resume` call.

In: a spec (path or mapping) and overrides. Out: a `Result`. Checks everything before anything is created.
Must not print: progress is the caller's business (`watch`).
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from time import strftime, time
from typing import TYPE_CHECKING, Any

from god_ray.errors import GodRayError, ResumeRefused, UserError
from god_ray.monitor.newest import newest
from god_ray.runtime.run_folder import RunFolder
from god_ray.saying import Say, silent
from god_ray.spec import LoadedSpec, RunSpec, load, resolved_yaml
from god_ray.storage.store import below

if TYPE_CHECKING:
    from ray.train import Checkpoint
    from torch import nn

    from god_ray.runtime.assignment import Assignment
    from god_ray.runtime.driver import Fit
    from god_ray.runtime.taken import Taken


# What is not part of the result, or is compared by its content. The rest of a spec stays as it was.
_MAY_CHANGE = frozenset(
    {"checkpoint", "data", "failures", "init_from", "name", "recipe", "storage", "sweep", "workers"}
)
Watch = Callable[[RunFolder, int], AbstractContextManager[object]]


@dataclass(frozen=True)
class Result:
    """How a run ended. `metrics` are those of its last evaluation; `failure` is the first cause of FAILED."""

    name: str
    state: str
    reason: str
    step: int
    metrics: dict[str, Any]
    digest: str
    folder: Path
    """On this machine: a working copy, if the run is kept in a store."""
    place: str
    """Where the run is kept: a folder, or a URI."""
    failure: GodRayError | None = None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest intact checkpoint as a `ray.train.Checkpoint`; None if there is none yet."""
        from ray.train import Checkpoint

        from god_ray.checkpoint import files
        from god_ray.checkpoint.store import CheckpointStore

        folder = RunFolder(self.place)
        found = CheckpointStore(folder.checkpoint_store, 0).newest_intact()
        if found is None:
            return None
        filesystem, path = folder.filesystem()
        return Checkpoint(f"{path}/checkpoints/{files.folder(found.step)}", filesystem)

    def load_model(self) -> nn.Module:
        """The recipe's model with the last checkpoint's weights, in evaluation mode."""
        from god_ray.runtime.model import load_model

        return load_model(RunFolder(self.place))


def train(
    spec: str | os.PathLike[str] | Mapping[str, Any],
    *,
    debug: bool = False,
    watch: Watch | None = None,
    say: Say = silent,
    overrides: tuple[str, ...] = (),
    **fields: Any,
) -> Result:
    """Train a new run to its end. Raises UserError before the run is made; a failed run is a Result.

    say: told how far reading and converting the data are, where that takes long.
    """
    loaded = load(spec, overrides, **fields)
    name = loaded.spec.name or f"{strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    storage = loaded.spec.storage
    RunFolder.require_new(storage, name)
    assignment = _prepare(loaded, below(storage, name), debug, say)
    from god_ray.runtime.weights import pin_weights

    assignment = pin_weights(assignment)
    with _host(assignment, debug) as (fit, connect):
        from god_ray.runtime.attempt import try_leaf
        from god_ray.runtime.equipment import equip

        assignment = equip(assignment, None, connect, say)
        taken = try_leaf(assignment, say)
        folder = _create(loaded, assignment, storage, name, taken)
        size = 1 if debug else assignment.spec.workers.initial
        return _drive(assignment, folder, size, fit, watch)


def _create(
    loaded: LoadedSpec, assignment: Assignment, storage: str, name: str, taken: Taken | None
) -> RunFolder:
    """The run folder with its spec, its record and what was fitted."""
    from god_ray.runtime import equipment

    fitted = assignment.fitted
    plan = assignment.plan()
    record = {
        "id": secrets.token_hex(8),
        "state": "QUEUED",
        "reason": "created",
        "spec": json.loads(assignment.spec.model_dump_json()),
        "data_fingerprint": assignment.train.manifest.fingerprint,
        "eval_fingerprint": assignment.evaluation.manifest.fingerprint if assignment.evaluation else None,
        "init_from": taken and asdict(taken),
        "fitted": equipment.digest(fitted) if fitted else None,
        "num_rows": plan.manifest.num_rows,
        "num_steps": assignment.num_steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "created_at": round(time(), 3),
        "started_at": round(time(), 3),
    }
    return RunFolder.create(storage, name, resolved_yaml(loaded), record, equipment.files(fitted))


def resume(
    run: str,
    storage: str | os.PathLike[str] = "runs",
    *,
    workers: int | None = None,
    debug: bool = False,
    watch: Watch | None = None,
    say: Say = silent,
) -> Result:
    """Go on with a stopped, failed or killed run, a name under `storage`, a path or a URI.

    Raises RunNotFound or ResumeRefused.
    """
    folder = RunFolder.find(run, os.fspath(storage))
    record = folder.read()
    if record["state"] == "SUCCEEDED":
        return _result(folder, record["state"], record["reason"], record["result"])
    loaded = load(folder.path / "spec.yaml")
    _require_same_spec(record, loaded.spec)
    assignment = _prepare(loaded, folder.place, debug, say)
    _require_same_data(record, assignment)
    began = record.run_spec()
    data = assignment.spec.data.model_copy(update={"shuffle": began.data.shuffle})
    spec = assignment.spec.model_copy(update={"data": data, "init_from": began.init_from})
    from god_ray.runtime.weights import require_same_weights

    require_same_weights(record, spec)
    assignment = assignment.with_spec(spec)
    last = (record.get("attempts") or [{"workers": spec.workers.initial}])[-1]["workers"]
    size = 1 if debug else _within_lanes(workers or last, spec.lanes)
    with _host(assignment, debug) as (fit, connect):
        from god_ray.runtime import equipment

        known = equipment.read(folder.path, record.get("fitted"))
        assignment = equipment.equip(assignment, known, connect, say)
        return _drive(assignment, folder, size, fit, watch)


def evaluate(
    run: str,
    data: str | os.PathLike[str] | Sequence[str] | None = None,
    *,
    storage: str | os.PathLike[str] = "runs",
    step: int | None = None,
    best: bool = False,
) -> dict[str, float]:
    """The metrics of a run's checkpoint (the newest intact one, if not told which), measured in this process.

    data: files, folders or globs, or `file.py:function`, instead of the run's `data.eval`; their columns must
    be the same.
    Warns of damaged checkpoints that were passed over, and of what may make the last digits differ from the
    run's own. Raises RunNotFound, UserError (no evaluation set, data or recipe at fault) or CheckpointError.
    """
    from god_ray.runtime.evaluation import evaluate as evaluate_run

    paths = [os.fspath(data)] if isinstance(data, str | os.PathLike) else data
    found = evaluate_run(RunFolder.find(run, os.fspath(storage)), paths, step, best)
    for note in found.notes:
        warnings.warn(f"run {run}: {note}", stacklevel=2)
    return found.metrics


def _within_lanes(workers: int, lanes: int) -> int:
    if 1 <= workers <= lanes:
        return workers
    raise UserError(
        f"{workers} workers are not between 1 and lanes: {lanes}.",
        "lanes is part of the result and never changes in a run.",
        f"ask for 1 to {lanes} workers, or start a new run with more lanes.",
    )


def _prepare(loaded: LoadedSpec, place: str, debug: bool, say: Say) -> Assignment:
    from god_ray.runtime.numerics import prepare_process

    prepare_process(loaded.spec)
    from god_ray.runtime.assignment import prepare

    assignment = prepare(loaded, place, say, say)
    if debug:
        data = assignment.spec.data.model_copy(update={"reader": "direct"})
        assignment = assignment.with_spec(assignment.spec.model_copy(update={"data": data}))
    return assignment


def _require_same_spec(record: Mapping[str, Any], spec: RunSpec) -> None:
    before, now = record["spec"], json.loads(spec.model_dump_json())
    pairs = [(key, before[key], now[key]) for key in now if key not in _MAY_CHANGE]
    pairs += [
        (f"data.{key}", before["data"][key], now["data"][key])
        for key in ("columns", "window", "min_leaf_rows")
    ]
    pairs.append(("data.fit", before["data"].get("fit", {}), now["data"]["fit"]))
    pairs.append(("data.eval", before["data"]["eval"] is not None, now["data"]["eval"] is not None))
    changed = [
        f"{key}: {json.dumps(then)} became {json.dumps(new)}" for key, then, new in pairs if then != new
    ]
    if changed:
        raise ResumeRefused(
            f"spec.yaml of run {record['name']} has changed: {'; '.join(changed)}.",
            "A run's result follows from its spec; a resumed run must go on as it began.",
            "put it back, or start a new run with init_from: this run's folder.",
        )


def _require_same_data(record: Mapping[str, Any], assignment: Assignment) -> None:
    for key, source, count in (
        ("data", assignment.train, record["num_rows"]),
        ("eval", assignment.evaluation, None),
    ):
        before = record[f"{key}_fingerprint"]
        if source is None or source.manifest.fingerprint == before:
            continue
        rows = source.manifest.num_rows
        was = "" if count in (None, rows) else f" {count} rows became {rows}."
        raise ResumeRefused(
            f"data.{'train' if key == 'data' else 'eval'} of run {record['name']} has changed.{was}",
            "A resumed run must see every row of every epoch exactly once, in the order it began with.",
            "start a new run on the grown data with init_from: this run's folder."
            if count is not None and rows > count
            else "put the files back as they were, or start a new run.",
        )


@contextmanager
def _host(assignment: Assignment, debug: bool) -> Iterator[tuple[Fit, Callable[[], object] | None]]:
    """What does an attempt: this process, or Ray, which is being started while the caller goes on; and what
    waits until it has.
    """
    if debug:
        from god_ray.runtime.inline import fit as fit_inline

        yield fit_inline, None
        return
    from god_ray.runtime.cluster import connecting

    with connecting(assignment.spec) as connection:

        def fit_on_ray(
            assignment: Assignment, folder: RunFolder, workers: int, ended: threading.Event
        ) -> dict[str, Any]:
            address = os.environ.get("RAY_ADDRESS")
            if address:
                folder.move("STARTING", f"connecting to Ray at {address}, for {workers} workers")
            connected = connection()
            from god_ray.runtime.trainer import fit

            return fit(connected, assignment, folder, workers, ended)

        yield fit_on_ray, connection


def _drive(assignment: Assignment, folder: RunFolder, workers: int, fit: Fit, watch: Watch | None) -> Result:
    from god_ray.runtime import control
    from god_ray.runtime.driver import drive

    with folder.drive(), watch(folder, assignment.num_steps) if watch else nullcontext():
        control.clear(folder.control)  # what an earlier driver was asked; from here on, commands are heard
        ended = drive(assignment, folder, workers, fit)
    return _result(folder, ended.state, ended.reason, ended.outcome, ended.failure)


def _result(
    folder: RunFolder,
    state: str,
    reason: str,
    outcome: Mapping[str, Any],
    failure: GodRayError | None = None,
) -> Result:
    last = newest(folder.ledger) or {}
    return Result(
        name=folder.name,
        state=state,
        reason=reason,
        step=int(outcome.get("step", last.get("step", 0))),
        metrics=dict(outcome.get("metrics", {})),
        digest=str(outcome.get("digest", "")),
        folder=folder.path,
        place=folder.place,
        failure=failure,
    )
