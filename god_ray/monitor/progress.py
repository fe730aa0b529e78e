"""Progress for people: one live line on a terminal, plain lines at sensible intervals anywhere else.

In: ledger records, checkpoints' steps, sentences. Out: text on stderr. Must not know Ray, runs or files.
Never raises into training: when its stream is gone it falls silent. `step` costs microseconds; a terminal is
drawn by rich's own thread, a few times a second.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from god_ray.monitor import words

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

PLAIN_EVERY_S = 10.0
_EPOCH_EVERY_S = 1.0  # epochs of a few steps would fill a log
_WINDOW_STEPS = 128
_REDRAWS_PER_S = 4


class Progress:
    """Use as a context manager, or `start` and `close`.

    num_steps, steps_per_epoch: of the whole run. stream: stderr unless given. clock: unix seconds.
    """

    def __init__(
        self,
        num_steps: int,
        steps_per_epoch: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.num_steps, self.steps_per_epoch = num_steps, steps_per_epoch
        self.num_epochs = max(1, -(-num_steps // steps_per_epoch))
        self._stream, self._clock = stream or sys.stderr, clock
        self._record: Mapping[str, Any] | None = None
        self._window: deque[tuple[float, int, int]] = deque(maxlen=_WINDOW_STEPS)  # (at, step, rows so far)
        self._generation: object = ""  # no record's
        self._checkpoint_at: float | None = None
        self._said_at: float | None = None
        self._live: Live | None = None
        self._silent = False

    def start(self) -> None:
        if _draws(self._stream):
            self._guarded(self._start_live)

    def step(self, record: Mapping[str, Any]) -> None:
        """A step was published."""
        now = self._clock()
        self._measure(record, now)
        self._record = record
        if record.get("eval"):
            self._line(words.evaluation(record, self.num_epochs))
        if self._live is None and self._plain_due(record, now):
            self._said_at = now
            self._line("  ".join(words.fields(record, self._facts()).values()))

    def checkpoint(self, step: int, at: float | None = None) -> None:
        """A checkpoint became durable, at unix second `at` (now, if not given)."""
        self._checkpoint_at = self._clock() if at is None else at

    def say(self, text: str) -> None:
        """A sentence of its own: what is waited for, who died, who joined."""
        self._line(text)

    def close(self) -> None:
        """Take the live line away; a last plain line stands for it."""
        live, self._live = self._live, None
        if live is not None:
            self._guarded(live.stop)
            if self._record is not None:
                self._line(self._fitted(_width(self._stream)))

    def __enter__(self) -> Progress:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside

    def _measure(self, record: Mapping[str, Any], now: float) -> None:
        rows = self._window[-1][2] if self._window else 0
        entry = (record.get("at", now), record["step"], rows + record.get("num_rows", 0))
        if record.get("generation") == self._generation:
            self._window.append(entry)
            return
        # What a change of workers costs is not their speed. Replaced, not cleared: a thread may be drawing.
        self._generation = record.get("generation")
        self._window = deque([entry], maxlen=_WINDOW_STEPS)

    def _plain_due(self, record: Mapping[str, Any], now: float) -> bool:
        if self._said_at is None or record["step"] >= self.num_steps:
            return True
        ends_epoch = record["step"] % self.steps_per_epoch == 0
        return now - self._said_at >= (_EPOCH_EVERY_S if ends_epoch else PLAIN_EVERY_S)

    def _facts(self) -> words.Facts:
        window = self._window
        first, last = window[0], window[-1]
        elapsed_s, steps = last[0] - first[0], last[1] - first[1]
        return words.Facts(
            num_steps=self.num_steps,
            num_epochs=self.num_epochs,
            rows_per_s=(last[2] - first[2]) / elapsed_s if elapsed_s > 0 else None,
            eta_s=(self.num_steps - last[1]) * elapsed_s / steps if steps > 0 else None,
            checkpoint_age_s=None if self._checkpoint_at is None else self._clock() - self._checkpoint_at,
        )

    def _fitted(self, width: int) -> str:
        record = self._record
        if record is None:
            return words.clip("waiting for the first step", width)
        return words.fit(words.fields(record, self._facts()), width)

    def _line(self, text: str) -> None:
        self._guarded(lambda: self._write(words.printable(text)))

    def _write(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, emoji=False)  # above the live line
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def _guarded(self, act: Callable[[], object]) -> None:
        if self._silent:
            return
        try:
            act()
        except (OSError, ValueError):  # a closed pipe, a closed file
            self._silent = True

    def _start_live(self) -> None:
        from rich.console import Console
        from rich.live import Live

        ours = self._stream is sys.stderr
        self._live = Live(
            console=Console(file=self._stream, force_terminal=True),
            get_renderable=self._drawn,
            refresh_per_second=_REDRAWS_PER_S,
            transient=True,
            redirect_stdout=False,  # stdout is for results
            redirect_stderr=ours,  # what others print there goes above the line
        )
        self._live.start()

    def _drawn(self) -> Text:
        from rich.text import Text

        return Text(self._fitted(_width(self._stream)), no_wrap=True, overflow="crop")


def _draws(stream: TextIO) -> bool:
    """A terminal that understands cursor movement."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def _width(stream: TextIO) -> int:
    """Columns that can be filled without wrapping. Asked anew each time: windows change."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return (columns or 80) - 1
