"""Commands to a live run: one small file in the run's folder, replaced atomically.

`send` makes a command durable (that is its acknowledgement); the leader of the run polls, all workers apply
it at the same step boundary, the driver clears it. In: a kind and a number. Must not know Ray or torch.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from god_ray import durable
from god_ray.errors import RunFailed
from god_ray.loop.request import Request


def send(folder: Path, request: Request) -> None:
    """Write the command durably; a later one replaces an earlier one that is not applied yet."""
    folder.mkdir(exist_ok=True)
    said = json.dumps({"kind": request.kind, "workers": request.workers})
    durable.replace(folder / "request.json", said, folder / f".request.{os.getpid()}.tmp")


def clear(folder: Path, applied: Request | None = None) -> None:
    """Forget the command: its run has ended, or it has been `applied`; one that came after that one stays."""
    if applied is None or pending(folder) == applied:
        (folder / "request.json").unlink(missing_ok=True)


def pending(folder: Path) -> Request | None:
    """The command that was sent last, if the run has not taken it away yet."""
    path = folder / "request.json"
    return _read(path) if path.exists() else None


def _read(path: Path) -> Request:
    said = json.loads(path.read_text())
    return Request(str(said["kind"]), int(said["workers"]))


class FileControl:
    """The leader's side: one `stat` a step. `ended`: set by a driver in this process that will not wait."""

    def __init__(self, folder: Path, ended: threading.Event | None = None) -> None:
        self._path, self._ended = folder / "request.json", ended
        self._seen: tuple[int, int] | None = None

    def poll(self) -> Request | None:
        """The command, once. Raises RunFailed when the run has been ended at once."""
        if self._ended is not None and self._ended.is_set():
            raise RunFailed("the run was ended at once.")
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        if (status.st_mtime_ns, status.st_ino) == self._seen:
            return None
        self._seen = (status.st_mtime_ns, status.st_ino)
        return _read(self._path)


class NoControl:
    """The other workers': they hear of commands from the leader's notes."""

    def poll(self) -> Request | None:
        return None
