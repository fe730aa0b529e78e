"""The folder of a run: its files, its record (`run.json`), its lock and its states.

In: a storage and a name. Out: an atomically replaced record, transitions that are checked against a table,
and `path`: where the run's files are on this machine, which is the folder itself, or a working copy if that
is in a store. Must not know Ray or torch, so that `status` is fast. Two drivers of one run show here: the
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
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, TextIO

from god_ray import durable
from god_ray.errors import Bug, RunExists, RunFailed, RunNotFound, UserError
from god_ray.fileuri import has_secrets, plain, without_secrets
from god_ray.monitor import copies
from god_ray.runtime import lease, record, working_copy
from god_ray.runtime.record import Record
from god_ray.storage.store import below, is_remote, open_store

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
    """One run in a storage. Reading needs no lock; `drive` holds the run for one driver."""

    def __init__(self, place: str | Path) -> None:
        self.place = str(place)
        if has_secrets(self.place):
            raise UserError(
                f"{without_secrets(self.place)}: credentials stand in the URI.",
                "A place is kept with the run and told in messages.",
                "take them out, and give them by the environment (AWS_ACCESS_KEY_ID and the like).",
            )
        self.remote = is_remote(self.place)
        self.path = working_copy.folder(self.place) if self.remote else Path(place)
        self.name = self.path.name
        self.ledger, self.checkpoints = self.path / "ledger", self.path / "checkpoints"
        self.store = open_store(self.place)
        self.control = open_store(below(self.place, "control"))
        self.checkpoint_store = open_store(below(self.place, "checkpoints"))

    @classmethod
    def create(
        cls,
        storage: str | Path,
        name: str,
        spec_yaml: str,
        fields: Mapping[str, Any],
        files: Mapping[str, str] | None = None,
    ) -> RunFolder:
        """A new run, there as a whole or not at all. Raises RunExists when the name is taken.

        files: further texts by name.
        """
        cls.require_new(storage, name)
        folder = cls(below(str(storage), name))
        making = folder.path.with_name(f".{name}.{os.getpid()}.new")
        text = _text({"format": record.FORMAT, "name": name, **fields})
        try:
            for part in ("ledger", "checkpoints", "control"):
                (making / part).mkdir(parents=True)
            texts = {"spec.yaml": spec_yaml, **(files or {})}
            for file, content in texts.items():
                (making / file).write_text(content)
            durable.replace(making / "run.json", text, making / ".run.json.tmp")
            if folder.remote:
                shutil.rmtree(folder.path, ignore_errors=True)  # of a run that is gone from the store
            making.rename(folder.path)
            if folder.remote:
                working_copy.push(folder.path, folder.store, (*texts, "run.json"))
        except OSError as error:
            shutil.rmtree(making, ignore_errors=True)
            cls.require_new(storage, name)  # another process was faster; a rename never replaces files
            raise UserError(
                f"{folder.place} cannot be created: {error.strerror or error}.",
                "",
                "choose another --storage.",
            ) from error
        return folder

    @classmethod
    def require_new(cls, storage: str | Path, name: str) -> None:
        """Raises UserError if a run cannot have this name, RunExists if one has it."""
        if not _is_name(name):
            raise UserError(
                f"run name {name!r} cannot be a folder name.",
                "Letters, digits, dot, dash and underscore are allowed, at most 100 of them.",
                "choose another --name.",
            )
        if cls(below(str(storage), name)).is_taken():
            raise RunExists(
                f"run {name!r} exists already in {storage}.",
                "A run is never started twice under one name.",
                f"god-ray resume {name} to go on with it, or give another --name.",
            )

    @classmethod
    def find(cls, run: str, storage: str | Path) -> RunFolder:
        """`run` is a name under `storage`, or a place. Raises RunNotFound with the names there are."""
        for place in _places(run, str(storage)):
            folder = cls(place)
            if folder.is_there():
                folder.refresh()
                return folder
        there = [name for name in run_names(storage) if "/" not in name]
        raise RunNotFound(
            f"no run {run!r} in {storage}.",
            f"There are: {', '.join(there)}." if there else "There are no runs there.",
            "name one with god-ray ls, or give --storage.",
        )

    def is_there(self) -> bool:
        """Whether the run has a record. Raises UserError if the storage cannot be asked."""
        if not self.remote:
            return (self.path / "run.json").is_file()
        with _reading(self.place), suppress(FileNotFoundError):
            return bool(self.store.read("run.json"))
        return False

    def is_taken(self) -> bool:
        """Whether a new run cannot have this place: a folder is enough for that, whatever is in it."""
        return self.is_there() if self.remote else self.path.exists()

    def refresh(self) -> None:
        """Have in `path` what other machines have written down of a run in a store."""
        if self.remote:
            with _reading(self.place):
                working_copy.pull(self.path, self.store)
                copies.pull(self.ledger, self.store)

    def filesystem(self) -> tuple[Any, str]:
        """Where it is kept, as Ray wants it: (pyarrow's file system, None for this machine's; path)."""
        if not self.remote:
            return None, str(self.path)
        from god_ray.storage.filesystem import connect

        return connect(self.place)

    def keep_ledger(self, sync: Callable[[], None] = lambda: None) -> None:
        """All lines that were published on this machine are durable where the run is kept."""
        sync()
        if not self.remote:
            return
        try:
            copies.push(self.ledger, self.store)
        except OSError as error:
            raise RunFailed(
                f"the ledger of run {self.name} could not be kept",
                str(error),
                "look at the storage, then resume: lines since the last checkpoint are on this machine only",
                final=True,
            ) from error

    def read(self) -> Record:
        """The record. Raises RunNotFound when it is damaged."""
        path = self.path / "run.json"
        if not self.remote:
            return record.read(path, _MOVES)
        with _reading(self.place):  # what is read here counts: another thread may pull an older one
            return record.parse(self.store.read("run.json"), path, _MOVES)

    def update(self, **fields: Any) -> dict[str, Any]:
        """Change fields of the record, atomically and one writer at a time."""
        return self._change(lambda _: fields)

    def _change(self, fields_after: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        try:
            with _locked(self.path / ".record.lock"):
                now = dict(self.read()) if self.is_there() else {"format": record.FORMAT}
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
        durable.replace(self.path / "run.json", _text(fields), self.path / ".run.json.tmp")
        if self.remote:
            working_copy.push(self.path, self.store, ("run.json",))

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
            with lease.held(self.store, self.name) if self.remote else nullcontext():
                yield

    def is_driven(self) -> bool:
        """True while some process on this machine holds the run, or on any if the run is in a store."""
        if self.remote:
            with _reading(self.place):
                return lease.holder(self.store) != ""
        try:
            with (self.path / ".driver.lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def run_names(storage: str | Path) -> list[str]:
    """Of every run in the storage; those of a sweep's trials are `sweep/trial`."""
    if is_remote(str(storage)):
        with _reading(str(storage)):
            files = [name.split("/") for name in open_store(str(storage)).list()]
        runs = (parts for *parts, file in files if file == "run.json" and len(parts) in (1, 2))
        return sorted("/".join(parts) for parts in runs if all(map(_is_name, parts)))
    root = _on_disk(str(storage))
    records = (*root.glob("[!.]*/run.json"), *root.glob("[!.]*/[!.]*/run.json"))
    return sorted(str(path.parent.relative_to(root)) for path in records)


def _places(run: str, storage: str) -> list[str | Path]:
    """Where a run of this name may be."""
    if is_remote(run):
        return [run]
    own = Path(run).expanduser().resolve()
    if not is_remote(storage):
        return [(_on_disk(storage) / run).resolve(), own]
    return [below(storage, run), own] if all(map(_is_name, run.split("/"))) else [own]


def _on_disk(storage: str) -> Path:
    try:
        return Path(plain(storage)).expanduser()
    except ValueError as error:
        raise UserError(
            f"--storage {storage} {error}.", "", "write file:///..., with three slashes"
        ) from error


def _is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None and ".." not in text


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1) + "\n"


@contextmanager
def _reading(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{place} cannot be read: {error.strerror or error}.",
            "",
            "look at the storage's address, credentials and network.",
        ) from error


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
