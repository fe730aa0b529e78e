"""Warm start: a new model with the weights of a run, a checkpoint or a file (`init_from`).

In: a spec, a model. Out: the model with these weights, and `Taken`; the optimizer is not touched.
`pin_weights` fixes what is meant when a run is made, `require_same_weights` holds a resumed run to it. What
does not fit shows as UserError before a run is made, a damaged checkpoint as CheckpointError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from god_ray.checkpoint import files
from god_ray.checkpoint.state import Snapshot
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import ResumeRefused, UserError
from god_ray.runtime.assignment import Assignment
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.taken import Taken
from god_ray.runtime.weight_file import read_file
from god_ray.runtime.weight_fit import fingerprint, take
from god_ray.spec import RunSpec
from god_ray.spec.warmstart import InitFrom
from god_ray.storage.store import above, below, is_remote, open_store

_STEP = re.compile(r"step-([0-9]+)")


def initialise(model: nn.Module, spec: RunSpec) -> Taken | None:
    """`spec.init_from` into the model; None if there is none. Raises UserError or CheckpointError."""
    start = spec.init_from
    if start is None:
        return None
    return take(model, _read(start, spec.storage), start.partial, start.path)


def pin_weights(assignment: Assignment) -> Assignment:
    """For a new run. A run's newest checkpoint, or what a link leads to, may be another one later."""
    spec = assignment.spec
    if spec.init_from is None:
        return assignment
    place = spec.init_from.path
    place = place if is_remote(place) else str(Path(place).resolve())
    if _is_run(place):
        found = _of_run(place).newest_intact()
        if found is not None:  # else it is refused when it is read
            place = below(place, f"checkpoints/{files.folder(found.step)}")
    start = spec.init_from.model_copy(update={"path": place})
    return assignment.with_spec(spec.model_copy(update={"init_from": start}))


def require_same_weights(record: Mapping[str, Any], spec: RunSpec) -> None:
    """A run that is resumed before its first checkpoint starts from the same weights again, or not at all."""
    before = record.get("init_from")
    if spec.init_from is None or before is None or record.get("durable_step"):
        return
    if fingerprint(_read(spec.init_from, spec.storage)) != before["fingerprint"]:
        raise ResumeRefused(
            f"init_from of run {record['name']} has changed: {spec.init_from.path} holds other weights.",
            "The run has no checkpoint yet, so it would start from other weights than it began with.",
            "put the file back as it was, or start a new run.",
        )


def _read(start: InitFrom, storage: str) -> dict[str, Tensor]:
    """Tensors by every name they have."""
    place = start.path
    around, name = above(place)
    if step := _STEP.fullmatch(name):
        return _by_all_names(CheckpointStore(open_store(around), 0).load(int(step[1]))[0])
    if _is_run(place):
        found = _of_run(place).newest_intact()
        if found is not None:
            return _by_all_names(found.snapshot)
    elif is_remote(place):
        return _read_object(around, name, place)
    elif Path(place).is_file():
        return read_file(Path(place))
    raise _nothing(place, storage)


def _read_object(around: str, name: str, place: str) -> dict[str, Tensor]:
    try:
        with open_store(around).fetch(name) as path:
            return read_file(path)
    except OSError as error:
        why = f"{error.strerror or error}"
        raise UserError(f"init_from: {place} cannot be read.", why, "correct the address.") from error


def _is_run(place: str) -> bool:
    folder = RunFolder(place)
    return folder.is_there() if folder.remote else folder.checkpoints.is_dir()


def _of_run(place: str) -> CheckpointStore:
    """Of a whole run only its own; `checkpoints` alone may have been copied out of one."""
    folder = RunFolder(place)
    return CheckpointStore(folder.checkpoint_store, 0, run=folder.read()["id"] if folder.is_there() else "")


def _by_all_names(snapshot: Snapshot) -> dict[str, Tensor]:
    """A tied tensor is kept once; a model that does not tie it asks for the others."""
    tied: Any = snapshot.scalars["tied"]
    return {**snapshot.model, **{name: snapshot.model[first] for name, first in tied.items()}}


def _nothing(place: str, storage: str) -> UserError:
    source = Path(place)
    why = "It is no file, no run with a checkpoint, and no checkpoint (.../checkpoints/step-00001200)."
    fix = "name one of these."
    if _is_run(place):
        why, fix = "The run has no checkpoint yet.", "wait for its first one, or name another run."
    elif not source.exists():
        why = "There is nothing at that path."
        if _is_run(run := below(storage, source.name)):
            fix = f"did you mean the run {run}? A name alone is a path, too."
    elif files := sorted(path.name for path in source.iterdir() if path.is_file()):
        fix = f"name one file in it: {', '.join(files[:8])}."
    return UserError(f"init_from: {place} holds no weights.", why, fix)
