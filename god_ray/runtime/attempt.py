"""One leaf of a recipe on real rows, in this process: what a worker does first, before there are workers.

In: an assignment. Out: the results of a leaf and of a small evaluation. Whatever the user's code raises
comes out as a RecipeError that names the line; an operation that torch refuses under `bitwise` is named as
such. Must not write anything.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from god_ray.errors import GodRayError, RecipeError
from god_ray.ingest.tasks import require_order
from god_ray.loop.evaluate import Evaluation
from god_ray.loop.leaf import LeafResult, LeafRunner
from god_ray.recipe import load_recipe
from god_ray.runtime import numerics
from god_ray.runtime.assemble import build_local
from god_ray.runtime.assignment import Assignment, load_preprocess
from god_ray.runtime.equipment import require_tensors
from god_ray.runtime.room import expected_bytes, room
from god_ray.runtime.sample import sample
from god_ray.runtime.taken import Taken
from god_ray.runtime.weights import initialise
from god_ray.saying import Say, silent
from god_ray.sync.group import Solo

T = TypeVar("T")
ORDER_ROWS = 64
"""So many first rows show whether a preprocess keeps their order."""
_KERNEL = "does not have a deterministic implementation"


def try_leaf(assignment: Assignment, note: Say = silent) -> Taken | None:
    """For `train`, before anything is created. Not compiled, on any processor: what can be wrong shows so.

    Returns what `init_from` gave. note: told if there seems to be too little room for checkpoints.
    """
    any_processor = assignment.spec.determinism.model_copy(update={"isa": None})
    plain = assignment.with_spec(
        assignment.spec.model_copy(update={"compile": False, "determinism": any_processor})
    )
    attempt = Attempt(plain)
    try:
        attempt.build()
        attempt.start()
        attempt.leaf(0)
        if attempt.assignment.evaluation is not None:
            attempt.evaluate()
        if warning := room(plain.spec, expected_bytes(attempt.local.state)).warning:
            note(warning)
        return attempt.taken
    finally:
        numerics.unpin()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # a worker may be given the same device


class Attempt:
    """`build`, `start`, then `leaf` and `evaluate`; the model is thrown away afterwards."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment, self.spec = assignment, assignment.spec
        builder = load_recipe(self.spec.recipe)
        self.file, self.build_at = builder.file, builder.file.where(builder.function)
        self.preprocess = load_preprocess(assignment)
        gpu = bool(self.spec.workers.gpus) and torch.cuda.is_available()
        self.device = torch.device("cuda" if gpu else "cpu")

    def build(self) -> None:
        """The model, as the recipe makes it."""
        self.local = build_local(self.assignment, self.device)

    def start(self) -> None:
        """The weights to start from, and the first rows to try the model on."""
        spec = self.spec
        self.taken = initialise(self.local.recipe.model, spec)
        recipe, self.mixed = self.local.recipe, spec.precision == "bf16-mixed"
        self.runner = LeafRunner(recipe, self.local.model, spec.seed, self.device, self.mixed)
        train = self.assignment.train
        require_tensors(self.assignment, recipe)
        require_order(self.preprocess, train.read(0, 0, min(ORDER_ROWS, int(train.manifest.rows[0]))))
        self.plan, self.feed = sample(train, spec.batch_size, spec.lanes, self.preprocess, recipe.collate)

    def leaf(self, lane: int) -> LeafResult:
        """Forward and backward of the lane's rows."""
        cursor = self.plan.cursor_at(0)
        leaf = self.feed.leaf(cursor, lane)
        assert leaf is not None, "a full batch has rows for every lane"
        return self.blame("loss(model, batch)", lambda: self.runner.run(cursor, lane, leaf, keep=False))

    def evaluate(self) -> dict[str, float]:
        """The metrics over the first rows of the evaluation set; those that the spec names are among them."""
        source, recipe, spec = self.assignment.evaluation, self.local.recipe, self.spec
        assert source is not None
        rows = min(source.manifest.num_rows, spec.batch_size)
        plan, feed = sample(source, rows, spec.lanes, self.preprocess, recipe.collate)
        evaluation = Evaluation(recipe, self.runner, plan, feed, Solo(), range(spec.lanes))
        found = self.blame("metrics(model, batch)", lambda: evaluation.run(spec.seed, self.mixed))
        self._require_measured(found)
        return found

    def _require_measured(self, found: Mapping[str, float]) -> None:
        spec = self.spec
        rules = {
            "checkpoint.keep_best": spec.checkpoint.keep_best,
            "stop_when": spec.stop_when,
            "sweep": spec.sweep,
        }
        missing = [f"{k}.metric = {r.metric}" for k, r in rules.items() if r and r.metric not in found]
        if missing:
            raise RecipeError(
                f"{', '.join(missing)}: the evaluation does not measure that.",
                f"It measures {', '.join(sorted(found))}.",
                "name one of these, or return it from the recipe's metrics().",
            )

    def blame(self, doing: str, call: Callable[[], T]) -> T:
        """Call the user's code; what it raises comes out as a RecipeError with its line."""
        try:
            return call()
        except GodRayError:
            raise
        except (Exception, SystemExit) as error:  # whatever it is, it is the user's code that raised it
            if _KERNEL in str(error):
                raise self._no_kernel(error) from error
            if any(frame.filename == self.file.path for frame in traceback.extract_tb(error.__traceback__)):
                with self.file.blame(doing, self.spec.config):
                    raise
            said = f"{type(error).__name__}: {error}".rstrip(": ")  # in torch alone, as backward is
            raise RecipeError(f"{self.file.path}: {said}", f"Raised by {doing}.") from error

    def _no_kernel(self, error: BaseException) -> RecipeError:
        operation = str(error).split(_KERNEL)[0].strip()
        return RecipeError(
            f"{self.file.where(self.local.recipe.loss)}: {operation} has no deterministic kernel.",
            f"Used by the recipe on {self.device.type}; torch refuses it under determinism: bitwise.",
            "use another operation, or set determinism: relaxed.",
        )
