"""Checkpoints written behind the training loop: the loop stands still only for a copy.

`save` copies the state, `publish` lets it be written, a thread writes, prunes and remembers; the loop hears
of it by `written`. In: a store and what to keep. Must not know what is in a snapshot. An error of the
thread is raised at the loop's next call, so a full disk ends the run with the previous checkpoint intact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from god_ray.checkpoint.state import Snapshot
from god_ray.checkpoint.store import CheckpointStore
from god_ray.runtime.best import best_step
from god_ray.spec.progress import Checkpoint


class BackgroundCheckpoints:
    """The leader's. One save is in flight at a time; a second one waits for it."""

    def __init__(
        self,
        store: CheckpointStore,
        policy: Checkpoint,
        meta: Mapping[str, Any],
        sync_ledger: Callable[[], None],
        remember: Callable[[int], None],
    ) -> None:
        """remember: told of each step that is durable."""
        self.store, self.policy, self.meta = store, policy, meta
        self.sync_ledger, self.remember = sync_ledger, remember
        self._held: tuple[int, Snapshot, dict[str, Any]] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._running: Future[int] | None = None
        self._written: int | None = None

    def save(self, step: int, take: Callable[[], Snapshot], meta: Mapping[str, Any]) -> None:
        self._held = (step, take(), {**self.meta, **meta})

    def publish(self, step: int) -> None:
        if self._held is not None and self._held[0] <= step:
            self._collect(wait=True)
            self._running = self._thread.submit(self._write, *self._held)
            self._held = None

    def written(self) -> int | None:
        self._collect(wait=False)
        return self._written

    def drain(self) -> None:
        self._collect(wait=True)

    def close(self) -> None:
        """Wait for a save in flight, whatever becomes of it: no thread may write behind its run's end."""
        self._thread.shutdown()

    def _collect(self, wait: bool) -> None:
        if self._running is not None and (wait or self._running.done()):
            running, self._running = self._running, None
            self._written = running.result()

    def _write(self, step: int, snapshot: Snapshot, meta: dict[str, Any]) -> int:
        self.sync_ledger()  # a checkpoint must not outlive the lines of the steps that led to it
        self.store.write(step, snapshot, meta)
        self.remember(step)
        self.store.prune(self.policy.keep, self._best())
        return step

    def _best(self) -> set[int]:
        """The best one stays, however old it is."""
        step = best_step(self.store, self.policy.keep_best)
        return set() if step is None else {step}


class NoCheckpoints:
    """The other workers': the leader writes."""

    def save(self, step: int, take: Callable[[], Snapshot], meta: Mapping[str, Any]) -> None:
        return None

    def publish(self, step: int) -> None:
        return None

    def written(self) -> int | None:
        return None

    def drain(self) -> None:
        return None

    def close(self) -> None:
        return None


class NoJournal:
    """The other workers' ledger."""

    def publish(self, record: Mapping[str, Any]) -> object:
        return None

    def seal(self) -> None:
        return None

    def close(self) -> None:
        return None


class NoReporter:
    """Where no Ray Train listens (`--debug`, a sweep's trial)."""

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        return None
