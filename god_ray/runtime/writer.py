"""Checkpoints written behind the training loop, by a thread: neither copy nor disk is the loop's to wait for.

`save` copies this worker's share, `publish` lets it be written, a thread writes; the leader's thread also
makes the checkpoint of all shares, prunes and remembers; the loop hears of it by `written`. In: a store, a
share, and for the leader what to keep. Must not know what is in a snapshot. An error of the thread is raised
at the loop's next call, so a full disk ends the run with the previous checkpoint intact.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from god_ray.checkpoint.share import Share
from god_ray.checkpoint.state import Snapshot, View
from god_ray.checkpoint.store import CheckpointStore
from god_ray.runtime.best import best_step
from god_ray.spec.progress import Checkpoint

GIVE_UP_S = 2.0
"""After a failure: how long a save in flight waits for the shares of the others."""


@dataclass(frozen=True)
class Leading:
    """What the leader does besides writing its share."""

    policy: Checkpoint
    meta: Mapping[str, Any]
    sync_ledger: Callable[[], None]
    remember: Callable[[int], None]
    """Told of each step that is durable."""


class BackgroundCheckpoints:
    """One save is in flight at a time; a second one waits for it. `leading`: None on all workers but one."""

    def __init__(self, store: CheckpointStore, share: Share, leading: Leading | None) -> None:
        self.store, self.share, self.leading = store, share, leading
        self._held: tuple[int, Snapshot, dict[str, Any]] | None = None
        self._spare: Snapshot | None = None
        self._given_up = threading.Event()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._sharing: Future[None] | None = None
        self._finishing: Future[int] | None = None
        self._written: int | None = None

    def prepare(self, view: View) -> None:
        self._spare = view.room(self.share)

    def save(self, step: int, view: View, meta: Mapping[str, Any]) -> None:
        spare, self._spare = self._spare, None
        self._held = (step, view.copy(self.share, spare), dict(meta))

    def publish(self, step: int) -> None:
        if self._held is None or self._held[0] > step:
            return
        self._collect(wait=True)
        step, snapshot, meta = self._held
        self._held = None
        self._sharing = self._thread.submit(self._share, step, snapshot)
        if self.leading is not None:
            self._finishing = self._thread.submit(self._finish, self.leading, step, snapshot.scalars, meta)

    def written(self) -> int | None:
        self._collect(wait=False)
        return self._written

    def settle(self) -> None:
        if self._sharing is not None:
            self._sharing.result()

    def drain(self) -> None:
        self._collect(wait=True)

    def close(self) -> None:
        """Wait for a save in flight, whatever becomes of it: no thread may write behind its run's end."""
        giving_up = threading.Timer(GIVE_UP_S, self._given_up.set)
        giving_up.start()
        self._thread.shutdown()
        giving_up.cancel()

    def _collect(self, wait: bool) -> None:
        if self._sharing is not None and (wait or self._sharing.done()):
            sharing, self._sharing = self._sharing, None
            sharing.result()
        if self._finishing is not None and (wait or self._finishing.done()):
            finishing, self._finishing = self._finishing, None
            self._written = finishing.result()

    def _share(self, step: int, snapshot: Snapshot) -> None:
        try:
            self.store.saving(step).share(snapshot, self.share)
        except BaseException:
            self._given_up.set()  # the leader's own: there is nothing left to wait for
            raise
        self._spare = snapshot

    def _finish(self, leading: Leading, step: int, scalars: dict[str, Any], meta: dict[str, Any]) -> int:
        leading.sync_ledger()  # a checkpoint must not outlive the lines of the steps that led to it
        self.store.saving(step).finish(scalars, {**leading.meta, **meta}, self.share.count, self._given_up)
        self.store.written(step)
        leading.remember(step)
        self.store.prune(leading.policy.keep, self._best(leading.policy))
        return step

    def _best(self, policy: Checkpoint) -> set[int]:
        """The best one stays, however old it is."""
        step = best_step(self.store, policy.keep_best)
        return set() if step is None else {step}


class NoCheckpoints:
    """The other workers', where machines differ (`relaxed` only): shares of two would not fit together."""

    def prepare(self, view: View) -> None:
        return None

    def save(self, step: int, view: View, meta: Mapping[str, Any]) -> None:
        return None

    def publish(self, step: int) -> None:
        return None

    def written(self) -> int | None:
        return None

    def settle(self) -> None:
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
