"""The model of a run: built by its recipe, with the weights of one of its checkpoints.

In: a run folder. Out: an `nn.Module` in evaluation mode on the CPU, or a weights file. The caller's random
generators are left as they were. A recipe that builds another model now shows as CheckpointError with both
lists.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from god_ray.checkpoint.export import export as export_weights
from god_ray.checkpoint.state import restore_model
from god_ray.checkpoint.store import CheckpointStore, Found
from god_ray.errors import RunNotFound, UserError
from god_ray.ingest.fitted import Fitted, to_json
from god_ray.loop.seeding import BUILD, seed_generators
from god_ray.recipe import load_recipe
from god_ray.runtime import equipment
from god_ray.runtime.best import best_step
from god_ray.runtime.run_folder import RunFolder
from god_ray.spec import RunSpec


class Exported(NamedTuple):
    path: Path
    step: int
    digest: str
    metrics: dict[str, object] | None
    """Of the evaluation at that step, if there was one."""
    skipped: list[str]
    """Newer checkpoints that are damaged, and how."""


def load_model(folder: RunFolder) -> nn.Module:
    """With the newest intact checkpoint's weights; damaged newer ones are passed over with a warning.

    Raises RunNotFound if there is no checkpoint, CheckpointError if none is intact.
    """
    record = folder.read()
    spec = record.run_spec()
    found = choose(folder, spec, record["id"])
    for skipped in found.skipped:
        warnings.warn(f"run {folder.name}: passed over {skipped}", stacklevel=2)
    model = _build(spec, equipment.read(folder.path, record.get("fitted")) or {})
    restore_model(found.snapshot, model)
    return model.eval()


def export(folder: RunFolder, out: Path, step: int | None = None, best: bool = False) -> Exported:
    """Write weights to a safetensors file: of `step`, of the best checkpoint, or of the newest intact one."""
    if out.is_dir():
        raise UserError(
            f"{out} is a folder.", "The weights go into one file.", f"--to {out / 'model.safetensors'}"
        )
    record = folder.read()
    spec = record.run_spec()
    found = choose(folder, spec, record["id"], step, best)
    store = CheckpointStore(folder.checkpoint_store, 0, run=record["id"])
    fitted = equipment.read(folder.path, record.get("fitted")) or {}
    notes = {"fitted": to_json(fitted)} if fitted else {}
    path = export_weights(store, found.step, lambda: _build(spec, fitted), out, notes)
    return Exported(path, found.step, str(found.meta["digest"]), found.meta.get("eval"), found.skipped)


def choose(folder: RunFolder, spec: RunSpec, run: str, step: int | None = None, best: bool = False) -> Found:
    """The checkpoint of `step`, the best one, or the newest intact one, read and checked.

    run: the run's identity. Raises UserError, RunNotFound or CheckpointError.
    """
    if best and step is not None:
        raise UserError("--step and --best are both given.", "Each names a checkpoint.", "keep one of them.")
    store = CheckpointStore(folder.checkpoint_store, 0, run=run)
    if best:
        step = _best(store, spec)
    if step is None:
        found = store.newest_intact()
        if found is None:
            raise RunNotFound(
                f"run {folder.name} has no checkpoint yet.",
                "Weights are taken from checkpoints.",
                f"wait for the first one (god-ray status {folder.name}), or resume the run.",
            )
        return found
    if step not in store.steps():
        raise RunNotFound(
            f"run {folder.name} has no checkpoint of step {step}.",
            f"There are those of steps {', '.join(map(str, store.steps())) or 'none'}.",
            "name one of these with --step, or leave it out for the newest.",
        )
    return Found(step, *store.load(step), [])


def _best(store: CheckpointStore, spec: RunSpec) -> int:
    rule = spec.checkpoint.keep_best
    if rule is None:
        raise UserError(
            "the run's spec does not say which checkpoint is best.",
            "It has no checkpoint.keep_best.",
            "use --step N, or add checkpoint.keep_best to the spec of the next run.",
        )
    step = best_step(store, rule)
    if step is None:
        raise RunNotFound(
            f"no checkpoint has a value of {rule.metric}.",
            "Only those of steps that were evaluated have one, and NaN is none.",
            "leave --best out for the newest checkpoint.",
        )
    return step


def _build(spec: RunSpec, fitted: Fitted) -> nn.Module:
    """Seeded as in the run: what a recipe draws and keeps outside the state dict is then the same, too."""
    with generators_kept():
        seed_generators(BUILD, spec.seed)
        return load_recipe(spec.recipe)(spec.config, fitted).model


@contextmanager
def generators_kept() -> Iterator[None]:
    """The caller's random generators go on afterwards where they were."""
    state, array_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(state)
    np.random.set_state(array_state)
