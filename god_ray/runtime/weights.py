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

_STEP = re.compile(r"step-(\d+)")


def checkpoints(folder: Path, run: str = "") -> CheckpointStore:
    """Those in `folder`, for reading."""
    return CheckpointStore(folder, 0, run=run)


def initialise(model: nn.Module, spec: RunSpec) -> Taken | None:
    """`spec.init_from` into the model; None if there is none. Raises UserError or CheckpointError."""
    start = spec.init_from
    if start is None:
        return None
    return take(model, _read(start, spec.storage), start.partial, start.path)


def pin_weights(assignment: Assignment) -> Assignment:
    """For a new run. A run's newest checkpoint, or what a link leads to, may be another one later."""
    spec = assignment.spec
    if spec.init_from is None or "://" in spec.init_from.path:
        return assignment
    source = Path(spec.init_from.path).resolve()
    if _is_run(source):
        store = _of_run(source)
        found = store.newest_intact()
        source = source if found is None else store.path(found.step)  # None is refused when it is read
    start = spec.init_from.model_copy(update={"path": str(source)})
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
    if "://" in start.path:
        why = "Weights are read from a file system that this machine has mounted."
        raise UserError(f"init_from: {start.path} cannot be read.", why, "copy them there.")
    source = Path(start.path)
    if source.is_file():
        return read_file(source)
    if _is_run(source):
        found = _of_run(source).newest_intact()
        if found is not None:
            return _by_all_names(found.snapshot)
    elif step := _STEP.fullmatch(source.name):
        return _by_all_names(checkpoints(source.parent).load(int(step[1]))[0])
    raise _nothing(source, Path(storage))


def _is_run(source: Path) -> bool:
    return (source / "checkpoints").is_dir()


def _of_run(source: Path) -> CheckpointStore:
    """Of a whole run only its own; `checkpoints` alone may have been copied out of one."""
    record = (source / "run.json").exists()
    return checkpoints(source / "checkpoints", RunFolder(source).read()["id"] if record else "")


def _by_all_names(snapshot: Snapshot) -> dict[str, Tensor]:
    """A tied tensor is kept once; a model that does not tie it asks for the others."""
    tied: Any = snapshot.scalars["tied"]
    return {**snapshot.model, **{name: snapshot.model[first] for name, first in tied.items()}}


def _nothing(source: Path, storage: Path) -> UserError:
    why = "It is no file, no run with a checkpoint, and no checkpoint (.../checkpoints/step-00001200)."
    fix = "name one of these."
    if _is_run(source):
        why, fix = "The run has no checkpoint yet.", "wait for its first one, or name another run."
    elif not source.exists():
        why = "There is nothing at that path."
        if _is_run(storage / source.name):
            fix = f"did you mean the run {storage / source.name}? A name alone is a path, too."
    elif files := sorted(path.name for path in source.iterdir() if path.is_file()):
        fix = f"name one file in it: {', '.join(files[:8])}."
    return UserError(f"init_from: {source} holds no weights.", why, fix)
