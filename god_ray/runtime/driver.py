"""Leads a run from its first attempt to a final state.

In: an assignment and its folder. Out: the outcome, also in `run.json`. One attempt is one
`TorchTrainer.fit`; Ray restarts its workers from checkpoints inside it; a resize or a resume is a new
attempt. Ctrl-C once asks for a stop at the next boundary, twice ends at once. The first cause of a failure
is what comes out.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import time
from typing import Any

from god_ray.errors import GodRayError, NoRoom, RunFailed, UserError
from god_ray.loop.request import Request
from god_ray.runtime import control
from god_ray.runtime.assignment import Assignment, code_fingerprint
from god_ray.runtime.cause import first_cause
from god_ray.runtime.run_folder import RunFolder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ended:
    """`state` is final; `failure` is the first cause when it is FAILED."""

    state: str
    reason: str
    outcome: dict[str, Any]
    failure: GodRayError | None = None


class Interrupted(Exception):
    """The second Ctrl-C."""


Fit = Callable[[Assignment, RunFolder, int, threading.Event], dict[str, Any]]
"""One attempt: (assignment, folder, workers, ended). It gives up soon after `ended` has been set."""

GIVING_UP_S = 10.0
LOOK_EVERY_S, ASK_EVERY_S = 0.2, 2.0
"""For a command, before anybody trains: in a folder, and in a store."""


def drive(assignment: Assignment, folder: RunFolder, workers: int, fit: Fit) -> Ended:
    """Attempt after attempt until the run ends."""
    with _interrupts(lambda: control.send(folder.control, Request("stop"))):
        try:
            ended = _attempts(assignment, folder, workers, fit)
        except Interrupted:
            ended = Ended("STOPPED", "stopped at once by a second Ctrl-C", {"kind": "stopped"})
    try:
        control.clear(folder.control)
        folder.update(result=ended.outcome)  # first: a final state without its result could not be told
        folder.move(ended.state, ended.reason)
    except RunFailed as error:
        if ended.failure is None:
            raise
        what = f"{ended.failure.what}; the run's state could not be written either: {error.what}"
        raise RunFailed(what, error.why, error.fix) from ended.failure
    return ended


def _attempts(assignment: Assignment, folder: RunFolder, workers: int, fit: Fit) -> Ended:
    before = 0
    while True:
        _begin(assignment, folder, workers)
        ended, resize_to = _attempt(assignment, folder, workers, fit)
        if resize_to:
            control.clear(folder.control, Request("resize", resize_to))
            folder.move("RESIZING", f"from {workers} to {resize_to} workers")
            before, workers = workers, resize_to
        elif before and isinstance(ended.failure, NoRoom):  # for the size that was asked for
            folder.move("RESIZING", f"back to {before} workers: {ended.failure.what}")
            before, workers = 0, before
        else:
            return ended


def _begin(assignment: Assignment, folder: RunFolder, workers: int) -> None:
    """Write down the attempt, and say so if it runs other code than the one before."""
    attempts = folder.read().get("attempts", [])
    code = code_fingerprint(assignment.spec)
    reason = f"starting {workers} worker{'s' * (workers > 1)}"
    if attempts and attempts[-1]["code"] != code:
        reason += "; the recipe's or preprocess's file has changed since the attempt before"
    folder.move("STARTING", reason)
    now = {"workers": workers, "started_at": round(time(), 3), "code": code}
    folder.update(attempts=[*attempts, now])


def _attempt(assignment: Assignment, folder: RunFolder, workers: int, fit: Fit) -> tuple[Ended, int]:
    """One attempt. Returns how it ended, and the size asked for (0: none). Raises Interrupted."""
    box: dict[str, Any] = {}
    given_up = threading.Event()

    def work() -> None:
        try:
            box["result"] = fit(assignment, folder, workers, given_up)
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread, nothing is swallowed
            box["error"] = error

    thread = threading.Thread(target=work, name="fit", daemon=True)
    thread.start()
    try:
        asked = _wait_for(thread, folder, workers, given_up)
    except Interrupted:
        given_up.set()
        thread.join(GIVING_UP_S)
        raise
    if "result" in box:
        return _conclude(assignment, box["result"])
    if asked is not None:
        reason = f"asked to {asked.kind} before its workers trained"
        state = "STOPPED" if asked.kind == "stop" else "RESIZING"
        return Ended(state, reason, {"kind": "stopped"}), asked.workers
    failure = first_cause(box["error"])
    return Ended("FAILED", failure.what, {"kind": "failed"}, failure), 0


def _wait_for(
    thread: threading.Thread, folder: RunFolder, workers: int, given_up: threading.Event
) -> Request | None:
    """Until the attempt is over. Nobody trains yet, so nobody polls: a command then ends the attempt."""
    while thread.is_alive():
        thread.join(ASK_EVERY_S if folder.remote else LOOK_EVERY_S)
        asked = _asked_before_training(folder, workers)
        if asked is not None:
            given_up.set()
            # To stop, whatever it still waits for; another attempt must have this one behind it.
            thread.join(GIVING_UP_S if asked.kind == "stop" else None)
            return asked
    return None


def _asked_before_training(folder: RunFolder, workers: int) -> Request | None:
    try:
        asked = control.pending(folder.control)
        if asked is None or (asked.kind == "resize" and asked.workers == workers):
            return None
        return asked if folder.read()["state"] in ("STARTING", "WAITING") else None
    except (RunFailed, UserError) as error:  # the storage is out of reach: its workers will find out, too
        log.warning("no command is heard just now: %s", error)
        return None


def _conclude(assignment: Assignment, outcome: dict[str, Any]) -> tuple[Ended, int]:
    if "failure" in outcome:
        failure = outcome["failure"]
        return Ended("FAILED", failure.what, {"kind": "failed"}, failure), 0
    told = outcome["outcome"]
    if told["kind"] == "resize":
        return Ended("RESIZING", told["reason"], told), int(told["workers"])
    if told["kind"] == "stopped":
        return Ended("STOPPED", told["reason"], told), 0
    if told["step"] != assignment.num_steps and not told["early"]:
        failure = RunFailed(
            f"the run made {told['step']} of {assignment.num_steps} updates.",
            "It must not call that success.",
        )
        return Ended("FAILED", failure.what, told, failure), 0
    return Ended("SUCCEEDED", told["reason"], told), 0


class _interrupts:
    """Ctrl-C and SIGTERM: the first calls `stop`, the second raises Interrupted. In the main thread only."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop, self.count = stop, 0

    def __enter__(self) -> None:
        self.main = threading.current_thread() is threading.main_thread()
        if self.main:
            self.before = {s: signal.signal(s, self._on) for s in (signal.SIGINT, signal.SIGTERM)}

    def _on(self, _signal: int, _frame: object) -> None:
        self.count += 1
        if self.count > 1:
            raise Interrupted
        self.stop()

    def __exit__(self, *_: object) -> None:
        if self.main:
            for number, handler in self.before.items():
                signal.signal(number, handler)
