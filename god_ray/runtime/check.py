"""What `god-ray check` finds without training: all that can be wrong, in one listing, and what to expect.

In: a spec and changes to it. Out: `Checked`: faults, warnings, facts. Spec, recipe and data are looked at
one by one, as far as each can be without the others; when all are right, `trial` runs a step. Creates
nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from god_ray.errors import GodRayError, SpecError, UserError
from god_ray.runtime import numerics
from god_ray.runtime.fault import Fault, faults_of
from god_ray.runtime.parts import Parts, parts_as_written, parts_of
from god_ray.runtime.run_folder import RunFolder
from god_ray.saying import Say, silent
from god_ray.spec import LoadedSpec, RunSpec, load
from god_ray.storage.store import below, is_remote

if TYPE_CHECKING:
    from god_ray.ingest.parquet import ParquetSource
    from god_ray.recipe import Builder, Recipe


@dataclass
class Checked:
    """`facts` has stable keys; those of parts that could not be looked at are missing."""

    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Opened:
    builder: Builder | None = None
    recipe: Recipe | None = None
    """None, too, if it asks for what is fitted: then it is built when that is known."""
    train: ParquetSource | None = None
    evaluation: ParquetSource | None = None


def check(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    pages: bool = False,
    say: Say = silent,
) -> Checked:
    """Look at everything. Never raises what a spec, a recipe or a data set can be blamed for.

    pages: read all data even of a set above `data.memory_bytes`. say: told how far reading and converting
    the data are.
    """
    try:
        checked = Checked()
        loaded, opened, checked.faults = _look(path, overrides, checked.warnings, say)
        if loaded is not None:
            _look_around(loaded.spec, checked)
            _look_into(loaded, opened, pages, say, checked)
        if loaded is not None and not checked.faults:
            _try(loaded, opened, checked)
    finally:
        _unpin()
    return checked


def with_all_faults(error: UserError, path: str | os.PathLike[str], overrides: Sequence[str]) -> UserError:
    """What `train` met first, with all else that is wrong with spec, recipe and data; or as it is."""
    try:
        faults = _look(path, overrides, [], silent)[2]
    finally:
        _unpin()
    if len(faults) < 2:
        return error
    what = f"{os.fspath(path)} has {len(faults)} faults; nothing was started."
    return SpecError(what, "\n  ".join(map(str, faults)), faults=faults)


def _unpin() -> None:
    if "torch" in sys.modules:
        numerics.unpin()


def _look(
    path: str | os.PathLike[str], overrides: Sequence[str], warnings: list[str], say: Say
) -> tuple[LoadedSpec | None, Opened, list[Fault]]:
    """Spec, recipe and data, each by itself. No spec if that has faults."""
    faults: list[Fault] = []
    loaded: LoadedSpec | None = None
    try:
        loaded = load(path, overrides)
        parts = parts_of(loaded)
        numerics.prepare_process(loaded.spec)
        numerics.pin(loaded.spec)
    except SpecError as error:
        faults += faults_of(error)
        parts = parts_as_written(path, overrides, {fault.key for fault in faults})
    opened, more = _open(parts, warnings, say)
    return loaded, opened, [*faults, *_placed(more, parts.places)]


def _look_into(loaded: LoadedSpec, opened: Opened, pages: bool, say: Say, checked: Checked) -> None:
    """The data beyond the footers."""
    from god_ray.runtime import reading

    both = {"data.train": opened.train, "data.eval": opened.evaluation}
    sources = {key: source for key, source in both.items() if source is not None}
    limit_bytes = None if pages else loaded.spec.data.memory_bytes
    found = reading.read_through(sources, limit_bytes, say, checked.facts, checked.warnings)
    checked.faults += _placed(list(found), loaded.origins)
    if opened.train is not None:
        reading.weigh_groups(opened.train, loaded.spec, checked.facts, checked.warnings)


def _try(loaded: LoadedSpec, opened: Opened, checked: Checked) -> None:
    from god_ray.loop.seeding import BUILD, seed_generators
    from god_ray.runtime import outlook
    from god_ray.runtime.assignment import prepare
    from god_ray.runtime.equipment import equip_for_trial
    from god_ray.runtime.trial import Trial

    assert opened.builder is not None, "without faults, the recipe was loaded"
    try:
        place = below(loaded.spec.storage, loaded.spec.name or "check")
        assignment, everything = equip_for_trial(prepare(loaded, place))
        if not everything:
            rows = loaded.spec.batch_size
            checked.warnings.append(f"data.fit was tried on {rows} rows; the run fits it on all of them")
        if opened.recipe is None:
            seed_generators(BUILD, loaded.spec.seed)
            opened.recipe = opened.builder(loaded.spec.config, assignment.fitted)
        outlook.expect(assignment, checked.facts, checked.warnings)
        Trial(assignment, opened.recipe, checked.facts, checked.warnings).run()
        outlook.after(assignment, checked.facts, checked.warnings)
    except GodRayError as error:
        checked.faults += faults_of(error)


def _placed(faults: Sequence[Fault], places: Mapping[str, str]) -> Iterator[Fault]:
    """With the line of the spec that leads there in front."""
    for fault in faults:
        place = places.get(fault.key, "default")
        if place == "default":
            yield fault
        else:
            what = ": ".join(part for part in (fault.key, fault.where, fault.what) if part)
            yield replace(fault, where=place, what=what)


def _open(parts: Parts, warnings: list[str], say: Say) -> tuple[Opened, list[Fault]]:
    """Build the recipe, open the data sets; and what is wrong with each."""
    from god_ray.ingest.sources.opening import Conversion, open_source
    from god_ray.loop.seeding import BUILD, seed_generators
    from god_ray.recipe import load_function, load_recipe

    opened, faults = Opened(), list[Fault]()
    if parts.recipe is not None:
        try:
            seed_generators(BUILD, parts.seed)
            opened.builder = load_recipe(parts.recipe)
            if not (opened.builder.wants_fitted and parts.fit):
                opened.recipe = opened.builder(parts.config)
        except GodRayError as error:
            faults += faults_of(error, "recipe")
    if parts.preprocess is not None:
        try:
            load_function(parts.preprocess)
        except GodRayError as error:
            faults += faults_of(error, "data.preprocess")
    # A collate may convert any column; without the recipe it is not known whether there is one.
    free = (
        parts.preprocess is not None
        or bool(parts.fit)
        or opened.recipe is None
        or opened.recipe.collate is not None
    )
    place = Conversion(parts.storage, parts.types, parts.nulls, say, warnings.append)
    for name, paths in (("train", parts.train), ("evaluation", parts.evaluation)):
        if paths is not None:
            try:
                source = open_source(paths, parts.columns, place, allow_any=free, like=opened.train)
                setattr(opened, name, source)
            except GodRayError as error:
                for fault in faults_of(error, "data.train" if name == "train" else "data.eval"):
                    wrong_name = parts.columns is not None and "no such column" in fault.what
                    faults.append(replace(fault, key="data.columns") if wrong_name else fault)
    faults += _too_few_rows(parts, opened)
    return opened, faults


def _too_few_rows(parts: Parts, opened: Opened) -> Iterator[Fault]:
    if opened.train is None or parts.batch_size is None:
        return
    rows = opened.train.manifest.num_rows
    if rows < parts.batch_size:
        what = f"{parts.batch_size} is above the {rows} rows of data.train"
        why = "Every step but the last of an epoch uses exactly one global batch."
        yield Fault("data", "", "batch_size", what, why, f"set batch_size: {rows} or less")


def _look_around(spec: RunSpec, checked: Checked) -> None:
    """What the spec asks of this machine."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    checked.facts["gpus"] = gpus
    if gpus and not spec.workers.gpus:
        checked.warnings.append(f"{gpus} GPUs here stay unused; set workers.gpus: 1 to train on them")
    if spec.workers.gpus and not gpus:
        checked.warnings.append("workers.gpus is set and this machine has none: the trial ran on the CPU")
    cores, wanted = os.cpu_count() or 1, spec.workers.max * spec.workers.cpus
    if wanted > cores:
        text = f"{spec.workers.max} workers of {spec.workers.cpus:g} CPUs are more than the {cores} here"
        checked.warnings.append(f"{text}; on this machine alone they would share them")
    storage = Path(spec.storage)
    if not is_remote(spec.storage):
        there = next(parent for parent in (storage, *storage.parents) if parent.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            what = f"storage = {spec.storage} cannot be written"
            checked.faults.append(Fault("run", "", "storage", what, "", "choose another folder"))
    if spec.name is not None and RunFolder(below(spec.storage, spec.name)).is_taken():
        text = f"a run named {spec.name} is already there; train it under another --name"
        checked.warnings.append(text)
