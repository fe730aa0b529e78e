"""Trying again: how often, after which pause, and for how long a try may be silent.

In: a function that does one try. Out: what it returns. Must not know what is tried. A try runs in a thread of
its own; one that is silent for too long is left behind, and shows as a TimeoutError.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
# Its own: the generators that training seeds for each leaf must not be drawn from in another thread.
_jitter = random.Random()


@dataclass(frozen=True)
class Patience:
    """The defaults get over half a minute of refusals, and name a dead endpoint within five minutes."""

    num_tries: int = 8
    num_refused: int = 3
    """Tries in all when what is refused is our credentials; each with credentials read anew."""
    first_pause_s: float = 0.5
    """Before the second try; each further pause is twice as long."""
    longest_pause_s: float = 8.0
    stall_s: float = 30.0
    """A connection may go so long without a byte."""
    silence_s: float = 120.0
    """A whole try may go so long without progress, whatever the connection does."""

    def pause_s(self, num_failed: int) -> float:
        longest = min(self.first_pause_s * 2.0 ** (num_failed - 1), self.longest_pause_s)
        return longest * _jitter.uniform(0.75, 1)


class LeftBehind(Exception):
    """Raised within a try that nobody waits for any more."""


class Pulse:
    """How a try shows that it goes on: `beat()` after each piece of work."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._left_behind = False

    def beat(self) -> None:
        if self._left_behind:
            raise LeftBehind
        self._last = time.monotonic()

    def silent_s(self) -> float:
        return time.monotonic() - self._last

    def leave_behind(self) -> None:
        self._left_behind = True


def watched(work: Callable[[Pulse], T], silence_s: float) -> T:
    """`work`'s result or error. TimeoutError if its pulse is silent for `silence_s`."""
    pulse, end = Pulse(), Future[T]()
    threading.Thread(target=_run, args=(work, pulse, end), name="god_ray storage", daemon=True).start()
    try:
        while not end.done() and (silent_s := pulse.silent_s()) < silence_s:
            wait([end], silence_s - silent_s)
        if not end.done():
            raise TimeoutError(f"no answer within {silence_s:g} s")
        return end.result()
    finally:
        pulse.leave_behind()


def _run(work: Callable[[Pulse], T], pulse: Pulse, end: Future[T]) -> None:
    try:
        end.set_result(work(pulse))
    except BaseException as error:  # noqa: BLE001 - handed to the waiting thread, nothing is swallowed
        end.set_exception(error)
