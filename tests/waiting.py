"""Waiting for a condition, never for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

DEADLINE_S = 90.0


def until(condition: Callable[[], object], what: str) -> None:
    """Fails, saying for what it waited, when the condition does not come true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s until {what}"
        threading.Event().wait(0.02)
