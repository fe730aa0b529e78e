"""Trying a request to a store again: what passes, and what may pass with credentials read anew.

In: what does one try. Out: what it returns. Each further try has a pause before it, a line in the log and its
number. Must not know what is asked for. What stays is an OSError with the number it had, that says how often
it was tried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from god_ray.storage.filesystem import Outlook, cause, outlook
from god_ray.storage.named import os_error
from god_ray.storage.tries import Patience

log = logging.getLogger(__name__)
T = TypeVar("T")


class Retrying:
    """Of all requests to one place. `anew`: forgets what was opened with credentials that are refused."""

    def __init__(self, patience: Patience, anew: Callable[[], object]) -> None:
        self.patience, self.num_retries = patience, 0
        self._anew = anew
        self._limits = {
            Outlook.PASSING: patience.num_tries,
            Outlook.REFUSED: patience.num_refused,
            Outlook.HOPELESS: 1,
        }

    def __call__(self, doing: str, once: Callable[[], T]) -> T:
        """`doing`: `s3://b/runs: read of run.json`, for the log."""
        num_failed = 0
        while True:
            try:
                return once()
            except OSError as error:
                num_failed += 1
                seen, said = outlook(error), cause(error, self.patience)
                if num_failed >= self._limits[seen]:
                    tried = f", tried {num_failed} times" if num_failed > 1 else ""
                    raise os_error(error.errno, f"{said}{tried}") from error
            if seen is Outlook.REFUSED:
                self._anew()
            pause_s = self.patience.pause_s(num_failed)
            self.num_retries += 1
            log.warning(
                "%s: try %d of %d failed, again in %.1f s (retry %d of this store): %s",
                doing, num_failed, self._limits[seen], pause_s, self.num_retries, said,
            )  # fmt: skip
            time.sleep(pause_s)
