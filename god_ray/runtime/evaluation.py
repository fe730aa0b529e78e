"""A run's checkpoint measured on a data set, in this process, without Ray: what `god-ray eval` does.

In: a run folder, which checkpoint, perhaps other data. Out: `Evaluated`. Built, read, folded and pinned by
the functions of training, so that on `data.eval` the numbers are the ledger's to the last bit. Changes
nothing in the folder. torch is imported inside, once the environment that it reads is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from god_ray.errors import DataError, FingerprintMismatch, UserError
from god_ray.runtime import numerics
from god_ray.runtime.record import Record
from god_ray.runtime.run_folder import RunFolder
from god_ray.saying import Say, Ticker, silent
from god_ray.spec import RunSpec
from god_ray.spec.paths import absolute

if TYPE_CHECKING:
    from god_ray.ingest.parquet import ParquetSource
    from god_ray.ingest.sources.opening import Conversion
    from god_ray.loop.ports import Feed, LeafData
    from god_ray.plan import Cursor


@dataclass(frozen=True)
class Evaluated:
    """`notes`: damaged checkpoints that were passed over, and why numbers may differ from the run's."""

    step: int
    digest: str
    data: list[str]
    metrics: dict[str, float]
    notes: list[str]


def evaluate(
    folder: RunFolder,
    data: Sequence[str] | None = None,
    step: int | None = None,
    best: bool = False,
    say: Say = silent,
) -> Evaluated:
    """Of `step`, of the best checkpoint or of the newest intact one; on `data`, or on the run's own.

    data: files, folders or globs, or `file.py:function`. say: is told how far it is.
    Raises UserError, DataError, RecipeError, RunNotFound or CheckpointError.
    """
    record = folder.read()
    spec = record.run_spec()
    numerics.prepare_process(spec)
    from god_ray.runtime.model import generators_kept

    if data is None and spec.data.eval is None:
        raise UserError(
            f"run {folder.name} has no evaluation set.",
            "Its spec has no data.eval.",
            "name files, folders or globs with --data.",
        )
    with generators_kept():
        try:
            return _evaluate(folder, record, spec, data, step, best, say)
        finally:
            numerics.unpin()


def _evaluate(
    folder: RunFolder,
    record: Record,
    spec: RunSpec,
    data: Sequence[str] | None,
    step: int | None,
    best: bool,
    say: Say,
) -> Evaluated:
    from god_ray.checkpoint.state import restore_model
    from god_ray.loop.leaf import LeafRunner
    from god_ray.runtime import equipment
    from god_ray.runtime.assemble import open_evaluation
    from god_ray.runtime.assignment import Assignment, conversion
    from god_ray.runtime.attempt import Attempt
    from god_ray.runtime.model import choose
    from god_ray.sync.group import Solo

    found = choose(folder, spec, record["id"], step, best)
    paths, source = _open(spec, data, conversion(spec.data, folder.place, say))
    # Nothing is trained, so the rows that are measured stand in for those that were trained on.
    fitted = equipment.read(folder.path, record.get("fitted")) or {}
    attempt = Attempt(Assignment(spec, folder.place, source, source, found.step, fitted=fitted))
    attempt.build()
    recipe, mixed = attempt.local.recipe, spec.precision == "bf16-mixed"
    restore_model(found.snapshot, recipe.model)
    runner = LeafRunner(recipe, attempt.local.model, spec.seed, attempt.device, mixed)
    evaluation = open_evaluation(attempt.local, Solo(), runner, range(spec.lanes), attempt.preprocess)
    assert evaluation is not None, "there is a source"
    evaluation.feed = _Counted(evaluation.feed, source.manifest.num_rows, say)
    try:
        metrics = attempt.blame("metrics(model, batch)", lambda: evaluation.run(spec.seed, mixed))
    finally:
        evaluation.feed.close()
    notes = [f"passed over {skipped}" for skipped in found.skipped]
    if data is None and source.manifest.fingerprint != record["eval_fingerprint"]:
        notes.append("data.eval has changed since the run began")
    notes += _other_bits(record, attempt.local.fingerprint)
    return Evaluated(found.step, str(found.meta["digest"]), paths, metrics, notes)


def _open(spec: RunSpec, data: Sequence[str] | None, copies: Conversion) -> tuple[list[str], ParquetSource]:
    """Text gets the types, and other data the columns, of the training set, if that is there."""
    from god_ray.runtime.assignment import open_data

    try:
        train = open_data(spec, spec.data.train, copies)
    except DataError:
        train = None
    if data is None:
        paths = list(spec.data.eval or ())
        return paths, open_data(spec, paths, copies, train)
    paths = [absolute(text, Path.cwd()) for text in data]
    columns = spec.data.columns or (train and train.schema.names)
    section = spec.data.model_copy(update={"columns": columns})
    return paths, open_data(spec.model_copy(update={"data": section}), paths, copies, train)


def _other_bits(record: Record, here: dict[str, str]) -> list[str]:
    run = record.get("fingerprint")
    try:
        numerics.compare(run or here, here, "this process")
    except FingerprintMismatch as error:
        return [f"the last digits may differ from the run's own: {error.why}"]
    return []


class _Counted:
    """A feed that says how many rows it has handed out."""

    def __init__(self, feed: Feed, num_rows: int, say: Say) -> None:
        self.feed, self.ticker = feed, Ticker("evaluating", num_rows, say, "rows", 1)
        self.counters: dict[str, Any] = feed.counters
        self.done = 0

    def start(self, cursor: Cursor, lanes: range) -> None:
        self.feed.start(cursor, lanes)

    def leaf(self, cursor: Cursor, lane: int) -> LeafData | None:
        data = self.feed.leaf(cursor, lane)
        if data is not None:
            self.ticker.tick(self.done)
            self.done += len(data.rows)
        return data

    def close(self) -> None:
        self.feed.close()
