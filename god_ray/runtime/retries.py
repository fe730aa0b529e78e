"""Whether a run's workers are started again after a failure, and what the run's record says meanwhile.

In: what Ray says went wrong, once for a whole group of workers, in the driver's process. Out: again or not.
The cause stands in the record while the workers are replaced; what no restart can help, or what came twice
in the same step, is kept in `failure`. Must not know Ray.
"""

from __future__ import annotations

from collections.abc import Callable

from god_ray.errors import (
    Bug,
    CheckpointError,
    GodRayError,
    LedgerMismatch,
    RecipeError,
    RowsMismatch,
)
from god_ray.monitor.newest import newest
from god_ray.runtime.cause import first_cause
from god_ray.runtime.run_folder import RunFolder

# Met by one worker, and by the next one in its place as well.
FINAL = (Bug, CheckpointError, LedgerMismatch, RecipeError, RowsMismatch)


class Retries:
    """`most`: failures after which the run ends. `room`: what the workers wait for, in words."""

    def __init__(self, folder: RunFolder, most: int, room: Callable[[], str]) -> None:
        self.folder, self.most, self.room = folder, most, room
        self.count = 0
        self.failure: GodRayError | None = None
        self._before: tuple[str, int] | None = None

    def wait(self) -> None:
        """The cluster has not placed the workers yet."""
        self.folder.move("WAITING", self.room() or "the cluster has room, but on no node for a whole worker")

    def again(self, error: BaseException) -> bool:
        """False: this ends the run, for the reason in `failure`."""
        cause = first_cause(error)
        self.folder.refresh()
        published = newest(self.folder.ledger)
        here = (cause.what, published["step"] if published else 0)
        self.count += 1
        if here == self._before and not cause.data.get("died"):
            why = f"It came twice in the same step, with nothing done in between.\n  {cause.why}".rstrip()
            self.failure = type(cause)(cause.what, why, cause.fix)
        elif isinstance(cause, FINAL) or cause.data.get("final") or self.count > self.most:
            self.failure = cause
        self._before = here
        if self.failure is not None:
            return False
        recoveries = int(self.folder.read().get("recoveries", 0)) + 1
        self.folder.update(recoveries=recoveries)
        self.folder.move("RECOVERING", cause.what)
        return True
