"""The folder of a run: its files, its record (`run.json`), its lock and its states.

In: a storage folder and a name. Out: paths, an atomically replaced record, transitions that are checked
against a table. Must not know Ray or torch, so that `status` is fast. Two drivers of one run show here: the
second is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, TextIO

from god_ray import durable
from god_ray.errors import Bug, RunExists, RunFailed, RunNotFound, UserError
from god_ray.runtime import record
from god_ray.runtime.record import Record

DRIVER_LOCK_S = 1.0
FINAL = ("STOPPED", "SUCCEEDED", "FAILED")
_MOVES: dict[str, tuple[str, ...]] = {
    "QUEUED": ("STARTING", "STOPPED", "FAILED"),
    "STARTING": ("WAITING", "RUNNING", "RECOVERING", "RESIZING", *FINAL),
    "WAITING": ("RUNNING", "RECOVERING", "RESIZING", "STARTING", *FINAL),
    "RUNNING": ("RECOVERING", "RESIZING", "STARTING", *FINAL),
    "RECOVERING": ("WAITING", "RUNNING", "RESIZING", "STARTING", *FINAL),
    "RESIZING": ("STARTING", *FINAL),
    "STOPPED": ("STARTING",),
    "FAILED": ("STARTING",),
    "SUCCEEDED": ("STARTING",),
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunFolder:
    """One run below a storage folder. Reading needs no lock; `drive` holds the run for one driver."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.ledger, self.checkpoints, self.control = path / "ledger", path / "checkpoints", path / "control"

    @classmethod
    def create(
        cls,
        storage: Path,
        name: str,
        spec_yaml: str,
        fields: Mapping[str, Any],
        files: Mapping[str, str] | None = None,
    ) -> RunFolder:
        """A new run, there as a whole or not at all. Raises RunExists when the name is taken.

        files: further texts by name.
        """
        cls.require_new(storage, name)
        folder, making = cls(storage / name), cls(storage / f".{name}.{os.getpid()}.new")
        try:
            for part in (making.ledger, making.checkpoints, making.control):
                part.mkdir(parents=True)
            for file, text in {"spec.yaml": spec_yaml, **(files or {})}.items():
                (making.path / file).write_text(text)
            making._write({"format": record.FORMAT, "name": name, **fields})
            making.path.rename(folder.path)
        except OSError as error:
            shutil.rmtree(making.path, ignore_errors=True)
            cls.require_new(storage, name)  # another process was faster; a rename never replaces files
            raise UserError(
                f"{folder.path} cannot be created: {error.strerror}.", "", "choose another --storage."
            ) from error
        return folder

    @classmethod
    def require_new(cls, storage: Path, name: str) -> None:
        """Raises UserError if a run cannot have this name, RunExists if one has it."""
        if not NAME.fullmatch(name) or ".." in name:
            raise UserError(
                f"run name {name!r} cannot be a folder name.",
                "Letters, digits, dot, dash and underscore are allowed, at most 100 of them.",
                "choose another --name.",
            )
        if (storage / name).exists():
            raise RunExists(
                f"run {name!r} exists already in {storage}.",
                "A run is never started twice under one name.",
                f"god-ray resume {name} to go on with it, or give another --name.",
            )

    @classmethod
    def find(cls, run: str, storage: Path) -> RunFolder:
        """`run` is a name under `storage` or a path. Raises RunNotFound with the names there are."""
        for path in (storage / run, Path(run).expanduser()):
            if (path / "run.json").is_file():
                return cls(path.resolve())
        there = sorted(p.parent.name for p in storage.glob("[!.]*/run.json"))
        raise RunNotFound(
            f"no run {run!r} in {storage}.",
            f"There are: {', '.join(there)}." if there else "There are no runs there.",
            "name one with god-ray ls, or give --storage.",
        )

    def read(self) -> Record:
        """The record. Raises RunNotFound when it is damaged."""
        return record.read(self.path / "run.json", _MOVES)

    def update(self, **fields: Any) -> dict[str, Any]:
        """Change fields of the record, atomically and one writer at a time."""
        return self._change(lambda _: fields)

    def _change(self, fields_after: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        try:
            with _locked(self.path / ".record.lock"):
                now = dict(self.read()) if (self.path / "run.json").exists() else {"format": record.FORMAT}
                now |= fields_after(now)
                self._write(now)
        except OSError as error:
            raise RunFailed(
                f"run.json of run {self.name} could not be written",
                f"{error.strerror or error}",
                "make room, then resume",
                final=True,
            ) from error
        return now

    def _write(self, fields: Mapping[str, Any]) -> None:
        """As a whole or not at all, and durably."""
        text = json.dumps(fields, indent=1) + "\n"
        durable.replace(self.path / "run.json", text, self.path / ".run.json.tmp")

    def remember(self, step: int) -> None:
        """The checkpoint of `step` is durable: a run that has one never starts from scratch."""
        self.update(durable_step=step)

    def move(self, state: str, reason: str) -> None:
        """Enter `state`, if the table allows it."""

        def moved(before: dict[str, Any]) -> dict[str, Any]:
            old = before.get("state")
            if old is not None and state != old and state not in _MOVES[old]:
                why = before.get("reason", "")
                raise Bug(f"run {self.name} cannot go from {old} to {state}: {reason}.", why)
            return {
                "state": state,
                "reason": reason,
                "ended_at": round(time(), 3) if state in FINAL else None,
            }

        self._change(moved)

    @contextmanager
    def drive(self) -> Iterator[None]:
        """Hold the run as its driver. Raises UserError if another process does."""
        try:
            lock = (self.path / ".driver.lock").open("a+")
        except OSError as error:
            raise UserError(
                f"{self.path / '.driver.lock'} cannot be written: {error.strerror}.",
                "A run is led by the process that holds this file.",
                "make the folder writable, or make room.",
            ) from error
        with lock as file:
            if not _takes(file):
                file.seek(0)
                raise UserError(
                    f"run {self.name} is being driven by {file.read().strip() or 'another process'}.",
                    "One process leads a run at a time.",
                    "wait for it, or stop it with Ctrl-C there.",
                )
            file.truncate(0)
            file.write(f"pid {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    def is_driven(self) -> bool:
        """True while some process on this machine holds the run."""
        try:
            with (self.path / ".driver.lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def _takes(file: TextIO) -> bool:
    """Take the driver's lock. `is_driven` holds it for microseconds: do not mistake that for a driver."""
    deadline = monotonic() + DRIVER_LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic() > deadline:
                return False
            sleep(0.01)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
