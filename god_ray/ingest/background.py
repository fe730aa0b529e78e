"""A function in a thread of its own, whose failure reaches whoever waits for it.

In: a function. Out: `done`, and `result()`, which raises what the function raised. The thread is a daemon: it
never keeps a process alive. Must not know what it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType


class Background:
    def __init__(
        self, function: Callable[[], None], name: str, when_done: Callable[[BaseException | None], None]
    ) -> None:
        """when_done: called in the thread with what it ended with, after `done` has become true."""
        self._future: Future[None] = Future()
        self._future.add_done_callback(lambda future: when_done(future.exception()))
        self._function = function
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self) -> None:
        """Wait for the end; raise what it ended with."""
        self._future.result()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended by then."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with _HandOver(self._future):
            self._function()


class _HandOver:
    """Whatever ends the block becomes the future's, so that it is raised where somebody waits."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)
        return True
