"""A state is hashed and copied by a thread while the loop goes on to the leaves of the next step.

In: a `View` at a step boundary. Out: its digest, for the notes of the next step; its copy, before that step
changes what is read. The loop waits there and nowhere else, and there it meets the thread's errors. Must not
know why a state is read, nor where copies go.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from god_ray.checkpoint.state import View

T = TypeVar("T")
Save = Callable[[View, str], None]
"""(view, its digest): copies what it needs before it returns."""


class Reading:
    """One state at a time. `at_once`: `begin` reads it all by itself, as is right for devices with queues.

    There a copy must come after the optimizer's kernels and before later ones; it does, without a thought for
    streams, where the thread that gave those to the device also copies, and waits for it.
    """

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once
        self._thread = ThreadPoolExecutor(1, "reading")  # in the order of the calls
        self._view: View | None = None
        self._digest: Future[str] | None = None
        self._saved: Future[None] | None = None

    def begin(self, view: View, save: Save | None = None) -> None:
        """Hash `view`; with `save`, hand it over with its digest, still in the thread."""
        digest = self._do(view.digest)
        self._view, self._digest = view, digest
        if save is not None:
            self._saved = self._do(lambda: save(view, digest.result()))

    def digest(self) -> str:
        """Of the state that is being read, once it is known; "" if there is none."""
        return "" if self._digest is None else self._digest.result()

    def finish(self) -> None:
        """Returns when all has been read. RecipeError if it was not the boundary's state to the end."""
        view, digest, saved = self._view, self._digest, self._saved
        self._view = self._digest = self._saved = None
        if view is None or digest is None:
            return
        digest.result()
        if saved is not None:
            saved.result()
        view.refuse_changed()

    def afterwards(self, job: Callable[[], object]) -> None:
        """Done by the thread when nothing is left to read, for nobody: it may fail."""
        self._thread.submit(job)

    def _do(self, job: Callable[[], T]) -> Future[T]:
        if not self.at_once:
            return self._thread.submit(job)
        done: Future[T] = Future()
        done.set_result(job())
        return done

    def close(self) -> None:
        """Returns when the thread has ended."""
        self._thread.shutdown(cancel_futures=True)
