"""Commands to a live run: one small object in the run's folder, replaced as a whole.

`send` makes a command durable (that is its acknowledgement); the leader of the run polls, all workers apply
it at the same step boundary, the driver clears it. In: the store of a run's commands, a kind and a number.
Must not know Ray or torch.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from god_ray.errors import RunFailed
from god_ray.loop.request import Request
from god_ray.storage.store import Store, is_remote, write_bytes

REQUEST = "request.json"
ASK_EVERY_S = 1.0

log = logging.getLogger(__name__)


def send(store: Store, request: Request) -> None:
    """Write the command durably; a later one replaces an earlier one that is not applied yet."""
    said = json.dumps({"kind": request.kind, "workers": request.workers})
    with _reaching(store):
        write_bytes(store, REQUEST, said.encode())


def clear(store: Store, applied: Request | None = None) -> None:
    """Forget the command: its run has ended, or it has been `applied`; one that came after that one stays."""
    if applied is None or pending(store) == applied:
        with _reaching(store):
            store.remove(REQUEST)


def pending(store: Store) -> Request | None:
    """The command that was sent last, if the run has not taken it away yet."""
    with _reaching(store), suppress(FileNotFoundError):
        return _read(store.read(REQUEST))
    return None


@contextmanager
def _reaching(store: Store) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"commands to the run cannot be read or written in {store.uri}",
            f"{error.strerror or error}",
            "look at the storage; god-ray resume goes on with the run once it can be reached",
        ) from error


def _read(text: bytes) -> Request | None:
    """None for what nobody sent: that is no reason to end a run."""
    try:
        said = json.loads(text)
        return Request(str(said["kind"]), int(said["workers"]))
    except (ValueError, KeyError, TypeError):
        return None


class FileControl:
    """The leader's side: one `stat` a step. `ended`: set by a driver in this process that will not wait."""

    def __init__(self, folder: Path, ended: threading.Event | None = None) -> None:
        self._path, self._ended = folder / REQUEST, ended
        self._seen: tuple[int, int] | None = None

    def poll(self) -> Request | None:
        """The command, once. Raises RunFailed when the run has been ended at once."""
        _require_going_on(self._ended)
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        if (status.st_mtime_ns, status.st_ino) == self._seen:
            return None
        self._seen = (status.st_mtime_ns, status.st_ino)
        return _read(self._path.read_bytes())

    def close(self) -> None:
        return None


class StoreControl:
    """The same where asking takes long: a thread asks once a second, a step only looks what it has heard."""

    def __init__(self, store: Store, ended: threading.Event | None = None) -> None:
        self._store, self._ended = store, ended
        self._heard = SimpleQueue[Request | None]()
        self._seen: Request | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def poll(self) -> Request | None:
        _require_going_on(self._ended)
        try:
            return self._heard.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        self._closed.set()

    def _listen(self) -> None:
        while not self._closed.wait(ASK_EVERY_S):
            try:
                asked = pending(self._store)
            except RunFailed as error:
                log.warning("no command is heard just now: %s", error.why)
                continue
            if asked != self._seen:
                self._seen = asked
                self._heard.put(asked)


def listen(store: Store, ended: threading.Event | None = None) -> FileControl | StoreControl:
    """The leader's ear. Close it."""
    return StoreControl(store, ended) if is_remote(store.uri) else FileControl(Path(store.uri), ended)


def _require_going_on(ended: threading.Event | None) -> None:
    if ended is not None and ended.is_set():
        raise RunFailed("the run was ended at once.")


class NoControl:
    """The other workers': they hear of commands from the leader's notes."""

    def poll(self) -> Request | None:
        return None

    def close(self) -> None:
        return None
