"""Progress of a run that is being driven in this process: its folder, looked at a few times a second.

In: a run folder. Out: `Progress` on stderr: steps, evaluations, checkpoints, changes of state, a stop that
was asked for. The run itself is never touched and never waits; what goes wrong here is said and ends the
watching only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO, cast

from god_ray.errors import GodRayError
from god_ray.loop.request import Request
from god_ray.monitor.ledger import Ledger
from god_ray.monitor.newest import newest
from god_ray.monitor.progress import Progress
from god_ray.runtime import control
from god_ray.runtime.run_folder import FINAL, RunFolder
from god_ray.runtime.status import checkpoints, saved_at

LOOK_EVERY_S = 0.2
ASK_EVERY_S = 2.0
"""Where the run is in a store, each look is a few requests."""


def watch(plain: bool = False) -> Callable[[RunFolder, int], AbstractContextManager[None]]:
    """What `god_ray.api.train` takes. plain: lines even on a terminal, where a debugger may be talking."""
    stream = cast(TextIO, _Plain(sys.stderr)) if plain else sys.stderr

    @contextmanager
    def watching(folder: RunFolder, num_steps: int) -> Iterator[None]:
        steps_per_epoch = int(folder.read().get("steps_per_epoch") or num_steps)
        with Progress(num_steps, steps_per_epoch, stream=stream) as progress:
            look = _Look(folder, progress)
            ended = threading.Event()
            thread = threading.Thread(target=look.until, args=(ended,), name="progress", daemon=True)
            thread.start()
            try:
                yield
            finally:
                ended.set()
                thread.join()

    return watching


class _Look:
    """What was seen so far; only what is new is said."""

    def __init__(self, folder: RunFolder, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        last = newest(folder.ledger)
        self.follower = Ledger.tail(folder.ledger, last["step"] + 1 if last else 0)
        self.saved = max(checkpoints(folder), default=0)
        self.said: tuple[object, object] | None = None
        self.written = 0
        self.asked: Request | None = None

    def until(self, ended: threading.Event) -> None:
        try:
            while not ended.wait(ASK_EVERY_S if self.folder.remote else LOOK_EVERY_S):
                self.once()
            self.once()
        except (GodRayError, OSError) as error:
            self.progress.say(f"progress is no longer shown: {error}")
        finally:
            self.follower.close()

    def once(self) -> None:
        self.folder.refresh()
        self._state()
        for record in self.follower.records():
            self.progress.step(record)
        step = max(checkpoints(self.folder), default=0)
        if step > self.saved:
            self.saved = step
            self.progress.checkpoint(step, saved_at(self.folder, step))
        self._command()

    def _command(self) -> None:
        """Each command once, until the run has obeyed it and takes it away."""
        told = control.pending(self.folder.control)
        if told != self.asked and told is not None:
            stop = told.kind == "stop"
            wish = "to stop (Ctrl-C again: at once)" if stop else f"for {told.workers} workers"
            self.progress.say(f"{self.folder.name} was asked {wish}; it obeys at the next step boundary")
        self.asked = told

    def _state(self) -> None:
        changed = (self.folder.path / "run.json").stat().st_mtime_ns
        if changed == self.written:
            return
        self.written = changed
        record = self.folder.read()
        now = (record.get("state"), record.get("reason"))
        if now != self.said and now[0] not in (*FINAL, "QUEUED"):  # the end is the summary's to tell
            self.progress.say(f"{self.folder.name} {now[0]}: {now[1]}")
        self.said = now


class _Plain:
    """A stream that does not admit to being a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
