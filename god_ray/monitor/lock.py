"""One writer at a time for a folder: an advisory lock that says who holds it and dies with its process.

In: a lock file. Out: a descriptor that holds it. Must not know what the folder is for. Failure shows as
RunFailed naming the holder's process id. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path

from god_ray.errors import RunFailed

log = logging.getLogger(__name__)

_POLL_S = 0.05
_held: set[int] = set()


def acquire(path: Path, patience_s: float) -> int:
    """Wait up to `patience_s` for the lock, saying for whom; RunFailed when that is over."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + patience_s
    said = False
    while not _try(handle):
        holder = _holder(handle)
        if time.monotonic() >= deadline:
            os.close(handle)
            raise RunFailed(
                f"{path.parent} is being written by {holder}",
                f"one process writes it at a time; waited {patience_s:g} s",
                "stop that process, or wait for it to end; its lock ends with it",
                holder=holder,
            )
        if not said:
            log.warning("waiting up to %g s for %s, which is writing %s", patience_s, holder, path.parent)
            said = True
        time.sleep(_POLL_S)  # flock has no timeout, and a thread blocked in it could not be called back
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    _held.add(handle)
    return handle


def release(handle: int) -> None:
    _held.discard(handle)
    os.ftruncate(handle, 0)
    fcntl.flock(
        handle, fcntl.LOCK_UN
    )  # closing is not enough while a child is between fork and `_drop_inherited`
    os.close(handle)


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: int) -> str:
    try:
        said = json.loads(os.pread(handle, 1000, 0))
        return f"process {said['pid']} on {said['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"  # it has the lock, and has not written its name yet


def _drop_inherited() -> None:
    """A forked child (a data loader's) shares the lock and would keep it after its parent died."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited)
