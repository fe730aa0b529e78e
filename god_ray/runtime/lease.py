"""Who leads a run that no file lock can guard, because its folder is in a store.

In: the run's store. Out: `held`, for the one driver; `holder`, for everybody else. A lease is renewed while
its driver lives and is over `LASTS_S` after the last renewal. Clocks may differ by a few seconds. A second
driver, or a place that cannot be written, shows as UserError; `holder` raises the store's OSError.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import time

from god_ray.errors import UserError
from god_ray.storage.store import Store, write_bytes

NAME = "driver.json"
RENEW_S = 10.0
LASTS_S = 45.0

log = logging.getLogger(__name__)


@contextmanager
def held(store: Store, run: str) -> Iterator[None]:
    """Raises UserError if another driver holds the run."""
    other = holder(store)
    if other and other != _me():  # this process has a file lock, too: its last lease was not given back
        raise UserError(
            f"run {run} is being driven by {other}.",
            "One process leads a run at a time.",
            f"wait for it, or stop it with Ctrl-C there; if it is dead, try again in {LASTS_S:g} s.",
        )
    try:
        _write(store)
    except OSError as error:
        why = "A run is led by the process that holds its lease there."
        fix = "look at the storage's credentials and quota."
        what = f"{store.uri} cannot be written: {error.strerror or error}."
        raise UserError(what, why, fix) from error
    released = threading.Event()
    thread = threading.Thread(target=_renew, args=(store, released), name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        released.set()
        thread.join(RENEW_S)  # it may be at a store that does not answer
        try:
            if holder(store) in ("", _me()):  # not one that was taken over while this process stood still
                store.remove(NAME)
        except OSError as error:  # how the run ended is more than this; the lease ends by itself
            log.warning("the lease of run %s could not be given back: %s", run, error)


def holder(store: Store) -> str:
    """In words; "" if nobody leads the run."""
    try:
        said = json.loads(store.read(NAME))
        pid, host, renewed_at = int(said["pid"]), str(said["host"]), float(said["at"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError):  # nobody's: a driver renews its own within seconds
        return ""
    if time() - renewed_at > LASTS_S or _gone(pid, host):
        return ""
    return _words(pid, host)


def _me() -> str:
    return _words(os.getpid(), socket.gethostname())


def _words(pid: int, host: str) -> str:
    return f"pid {pid} on {host}"


def _gone(pid: int, host: str) -> bool:
    """A driver of this machine that died without a word need not be waited for."""
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # alive, another user's
        return False
    return False


def _renew(store: Store, released: threading.Event) -> None:
    while not released.wait(RENEW_S):
        try:
            if (other := holder(store)) not in ("", _me()):
                log.error("this process stood still for so long that %s leads the run now", other)
                return
            _write(store)
        except OSError as error:
            log.warning("the lease of the run could not be renewed: %s", error)


def _write(store: Store) -> None:
    said = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "at": time()})
    write_bytes(store, NAME, said.encode())
