"""What a run needs besides its data as they are: what is fitted on the training set, and the cache of rows.

In: an assignment, what an earlier attempt fitted, Ray where there is one. Out: the assignment with both, and
the fitted statistics as text and back. Reads the whole training set for a new run that asks for it, says how
far that is, and waits for Ray only if the set is large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import xxhash

from god_ray.errors import RunNotFound
from god_ray.ingest import whole
from god_ray.ingest.fitted import Fitted, from_json, to_json
from god_ray.ingest.parquet import ParquetSource
from god_ray.ingest.sources import opening
from god_ray.recipe import Recipe
from god_ray.runtime.assignment import Assignment, load_preprocess
from god_ray.runtime.sample import head
from god_ray.saying import Say, silent
from god_ray.storage.store import above

FILE = "fitted.json"
QUICK_BYTES = 64 << 20
"""A set of this size is gone through here before Ray has started."""
Connect = Callable[[], object]


def equip(
    assignment: Assignment, known: Fitted | None = None, connect: Connect | None = None, say: Say = silent
) -> Assignment:
    """Fit, unless `known` says what was fitted when the run was made; then write or find the cache.

    connect: waits until Ray is there; None: there will be none.
    """
    data, train = assignment.spec.data, assignment.train
    large = train.decoded_bytes > QUICK_BYTES and data.reader == "ray"

    def on_ray() -> bool:
        if connect is None or not large:
            return False
        say("waiting for Ray, to go through the data")
        connect()
        return True

    if data.fit:
        fitted = known or whole.fit([train], data.fit, load_preprocess(assignment), on_ray(), say)
        assignment = replace(assignment, fitted=fitted)
    preprocess = load_preprocess(assignment)
    if known is None and data.cache == "none":
        _try_evaluation(assignment, on_ray, say)
    if data.cache == "none" or preprocess is None:
        return assignment
    made_by = f"{_code(assignment)} {digest(assignment.fitted)}"
    storage = above(assignment.place)[0]

    def kept(source: ParquetSource) -> ParquetSource:
        return whole.cached(source, preprocess, made_by, storage, on_ray(), say)

    evaluation = assignment.evaluation and kept(assignment.evaluation)
    return replace(assignment, train=kept(train), evaluation=evaluation, cached=True)


def equip_for_trial(assignment: Assignment) -> tuple[Assignment, bool]:
    """For `check`, which makes no run. Fitted on all rows while that is quick, else on those that are tried,
    and whether it was on all.
    """
    spec, train = assignment.spec, assignment.train
    if not spec.data.fit:
        return assignment, True
    everything = train.decoded_bytes <= QUICK_BYTES
    sources = [train]
    if not everything:
        sources = [head(source, spec.batch_size) for source in (train, assignment.evaluation) if source]
    fitted = whole.fit(sources, spec.data.fit, load_preprocess(assignment), False, silent)
    assignment = replace(assignment, fitted=fitted)
    if everything:
        _try_evaluation(assignment, lambda: False, silent)
    return assignment, everything


def _try_evaluation(assignment: Assignment, on_ray: Callable[[], bool], say: Say) -> None:
    """All its rows: an unknown category would end the run, and only at its first evaluation."""
    preprocess = load_preprocess(assignment)
    if assignment.evaluation is not None and assignment.fitted and preprocess is not None:
        whole.go_through(assignment.evaluation, preprocess, on_ray(), say)


def require_tensors(assignment: Assignment, recipe: Recipe) -> None:
    """What the footers tell of columns that nobody turns into tensors; types that passed for a fit's sake.

    Raises DataError with all of them.
    """
    data = assignment.spec.data
    if recipe.collate is not None or not (data.fit or assignment.cached):
        return
    if data.preprocess is not None and not assignment.cached:
        return  # only it knows which columns there will be
    for source in filter(None, (assignment.train, assignment.evaluation)):
        columns = [name for name in source.schema.names if assignment.cached or name not in data.fit]
        if columns:
            opening.require_tensors(source, columns)


def _code(assignment: Assignment) -> str:
    """The preprocess's file and name."""
    reference = assignment.spec.data.preprocess
    if reference is None:
        return ""
    path, _, name = reference.rpartition(":")
    return f"{xxhash.xxh3_128_hexdigest(Path(path).read_bytes())}:{name}"


def digest(fitted: Fitted) -> str:
    """Empty for nothing."""
    return xxhash.xxh3_128_hexdigest(to_json(fitted).encode()) if fitted else ""


def files(fitted: Fitted) -> dict[str, str]:
    """What the run's folder keeps of it, by name."""
    return {FILE: to_json(fitted)} if fitted else {}


def read(folder: Path, expected: str | None) -> Fitted | None:
    """What the run of that folder was fitted to; None if it has no such file and should have none.

    Raises RunNotFound if the file is not the run's any more.
    """
    if not expected:
        return None
    path = folder / FILE
    fix = "restore it from a copy of the run, or start a new run."
    try:
        fitted = from_json(path.read_text())
    except OSError as error:
        raise RunNotFound(f"{path} cannot be read: {error.strerror}.", "", fix) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunNotFound(f"{path} is not what was fitted: {error}.", "It was damaged.", fix) from error
    if digest(fitted) != expected:
        raise RunNotFound(f"{path} has changed since the run was made.", "Its hash is in run.json.", fix)
    return fitted
