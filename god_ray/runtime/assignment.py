"""What a worker is told when it starts: everything that the run is a function of, and where it is kept.

`prepare` makes it from a loaded spec: the data sets are opened (footers only), `auto` is decided, all that
is wrong with spec, data and recipe comes out at once. Plain picklable data. Must not know which worker gets
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import xxhash

from god_ray.errors import DataError, UserError
from god_ray.ingest.fitted import Fitted
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.sources.opening import Conversion, open_source
from god_ray.ingest.tasks import Fitting, Preprocess
from god_ray.plan import DataPlan
from god_ray.saying import Say, silent
from god_ray.spec import LoadedSpec, RunSpec
from god_ray.spec.data import Data
from god_ray.storage.store import above


@dataclass(frozen=True)
class Assignment:
    """`spec` has no `auto` left in it; `num_steps` counts optimizer updates from the very beginning."""

    spec: RunSpec
    place: str
    """Of the run: a folder, or a URI."""
    train: ParquetSource
    evaluation: ParquetSource | None
    num_steps: int
    fitted: Fitted = field(default_factory=dict)
    cached: bool = False
    """The sources hold what preprocess and fit have made of the rows already."""

    def plan(self) -> DataPlan:
        data = self.spec.data
        shuffle: Literal["full", "window", "none"] = data.shuffle  # type: ignore[assignment]
        return DataPlan(
            self.train.manifest,
            self.spec.batch_size,
            self.spec.lanes,
            self.spec.seed,
            shuffle,
            data.window,
            data.min_leaf_rows,
        )

    def evaluation_plan(self) -> DataPlan | None:
        """File order, every row once; leaves of about the training size, of one row if need be."""
        if self.evaluation is None:
            return None
        manifest = self.evaluation.manifest
        batch = min(self.spec.batch_size, manifest.num_rows)
        return DataPlan(manifest, batch, self.spec.lanes, 0, "none", 1, 1)

    def with_spec(self, spec: RunSpec) -> Assignment:
        return replace(self, spec=spec)


def prepare(loaded: LoadedSpec, place: str, say: Say = silent, note: Say = silent) -> Assignment:
    """Open what the spec names. Raises SpecError, DataError or UserError, before the run is created.

    Data that are not Parquet are converted, if they have not been yet; `say` and `note` are told of it.
    """
    spec = loaded.spec
    copies = conversion(spec.data, place, say, note)
    train = open_data(spec, spec.data.train, copies)
    evaluation = None if spec.data.eval is None else open_data(spec, spec.data.eval, copies, train)
    _require_rows(spec, train, evaluation)
    spec = _decide_shuffle(spec, train)
    draft = Assignment(spec, place, train, evaluation, 0)
    steps = spec.steps or spec.epochs * draft.plan().steps_per_epoch  # type: ignore[operator]
    return replace(draft, num_steps=steps)


def conversion(data: Data, place: str, say: Say = silent, note: Say = silent) -> Conversion:
    """How the run at that place has its data converted: copies lie beside the runs."""
    return Conversion(above(place)[0], data.types, data.nulls, say, note)


def open_data(
    spec: RunSpec, paths: Sequence[str], copies: Conversion, like: ParquetSource | None = None
) -> ParquetSource:
    """Columns that cannot be tensors pass if a preprocess, a fit or a collate may turn them into some."""
    columns, free = spec.data.columns, spec.data.preprocess is not None or bool(spec.data.fit)
    try:
        return open_source(paths, columns, copies, allow_any=free, like=like)
    except DataError:
        if free or not _has_collate(spec):
            raise
    return open_source(paths, columns, copies, allow_any=True, like=like)


def _has_collate(spec: RunSpec) -> bool:
    """Only the recipe knows: it is built here just when the columns make it matter."""
    from god_ray.loop.seeding import BUILD, seed_generators
    from god_ray.recipe import load_recipe

    seed_generators(BUILD, spec.seed)
    return load_recipe(spec.recipe)(spec.config).collate is not None


def _require_rows(spec: RunSpec, train: ParquetSource, evaluation: ParquetSource | None) -> None:
    rows = train.manifest.num_rows
    if rows < spec.batch_size:
        raise UserError(
            f"data.train has {rows} rows, batch_size is {spec.batch_size} (workers: {spec.workers.initial}, "
            f"lanes: {spec.lanes}).",
            "Every step but the last of an epoch uses exactly one global batch.",
            f"set batch_size: {rows} or less." if rows else "point data.train at files that have rows.",
        )
    if evaluation is not None and evaluation.manifest.num_rows == 0:
        raise UserError("data.eval has no rows.", "", "point it at files that have rows, or leave it out.")


def _decide_shuffle(spec: RunSpec, train: ParquetSource) -> RunSpec:
    """The order is part of the result, so `auto` is decided once, here, and kept in the resolved spec."""
    if spec.data.shuffle != "auto":
        return spec
    fits = train.decoded_bytes <= spec.data.memory_bytes
    data = spec.data.model_copy(update={"shuffle": "full" if fits else "window"})
    return spec.model_copy(update={"data": data})


def load_preprocess(assignment: Assignment) -> Preprocess | None:
    """What is done to rows after reading them: the user's function, then what was fitted."""
    from god_ray.recipe import load_function

    if assignment.cached:
        return None
    reference = assignment.spec.data.preprocess
    before = None if reference is None else load_function(reference)
    return Fitting(before, assignment.fitted) if assignment.fitted else before


def code_fingerprint(spec: RunSpec) -> str:
    """A hash of the user's files that the spec names: the recipe's, and the preprocess's."""
    files = [spec.recipe, *([spec.data.preprocess.rpartition(":")[0]] if spec.data.preprocess else [])]
    digest = xxhash.xxh3_128()
    for file in files:
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()
