"""A place that pyarrow.fs opens, and tries on it: the one rule for what passes, what is refused, what stays.

In: a URI; a function that does one try. Out: what that returns. What passes is tried again with a line in
the log; refused credentials are read anew first; what stays is the last try's OSError, which says how often
it was tried. Must not know what is tried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from god_ray.storage.filesystem import Opened, Outlook, cause, open_filesystem, outlook
from god_ray.storage.named import os_error
from god_ray.storage.tries import Patience

log = logging.getLogger(__name__)
T = TypeVar("T")


class Connection:
    """Opened when it is first needed: that may take the network. Safe to use from several threads."""

    def __init__(self, place: str, patience: Patience = Patience()) -> None:  # noqa: B008 - frozen
        self.patience = patience
        self.num_retries = 0
        """Since it was made."""
        self._place = place
        self._opened: Opened | None = None

    def opened(self) -> Opened:
        """To be asked in each try: its credentials may have been read anew."""
        opened = self._opened or open_filesystem(self._place, self.patience)
        self._opened = opened
        return opened

    def tried(self, doing: str, once: Callable[[], T]) -> T:
        """`doing`: for the log. FileNotFoundError comes out as it is."""
        patience = self.patience
        limits = {
            Outlook.PASSING: patience.num_tries,
            Outlook.REFUSED: patience.num_refused,
            Outlook.HOPELESS: 1,
        }
        num_failed = 0
        while True:
            try:
                return once()
            except FileNotFoundError:
                raise
            except OSError as error:
                num_failed += 1
                seen, said = outlook(error), cause(error, patience)
                if num_failed >= limits[seen]:
                    tried = f", tried {num_failed} times" if num_failed > 1 else ""
                    raise os_error(error.errno, f"{said}{tried}") from error
                if seen is Outlook.REFUSED:
                    self._opened = None  # its credentials may have been replaced
                pause_s = patience.pause_s(num_failed)
                self.num_retries += 1
                log.warning(
                    "%s: try %d of %d failed, again in %.1f s (retry %d of this place): %s",
                    doing, num_failed, limits[seen], pause_s, self.num_retries, said,
                )  # fmt: skip
                time.sleep(pause_s)
