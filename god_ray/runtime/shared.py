"""Is the run's storage one and the same for all workers? Asked before they train, not at a checkpoint.

In: the storage as each worker sees it, and their group. Out: nothing, or on every worker one UserError that
names the node, the place and what it could not do. Must not know what is kept there.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress

from god_ray.errors import UserError
from god_ray.storage.store import Store, write_bytes
from god_ray.sync.group import Group


def require_shared(store: Store, group: Group) -> None:
    """Each worker reads a word of the leader, and writes one where the leader's was."""
    own, word = f"probe-{group.rank}", secrets.token_hex(8).encode()
    leads = group.rank == 0
    fault = _fault(lambda: write_bytes(store, own, word)) if leads else ""
    word = group.gather_bytes(word)[0]
    fault = fault or _fault(lambda: _compare(store, word))
    if not fault and not leads:
        fault = _fault(lambda: write_bytes(store, own, word)) or _fault(lambda: store.remove(own))
    told = group.gather_bytes(json.dumps([socket.gethostname(), fault]).encode())
    if leads:
        with suppress(OSError):  # all have compared: what is left of it hurts nobody
            store.remove(own)
    faults = [(node, text) for node, text in map(json.loads, told) if text]
    if faults:
        where = "; ".join(dict.fromkeys(f"node {node}: {text}" for node, text in faults))
        raise UserError(
            f"storage {store.uri} cannot be used by all workers: {where}.",
            "Every worker writes its share of a checkpoint there.",
            "use a folder that all nodes share and may write, or s3://bucket/prefix.",
        )


def _compare(store: Store, word: bytes) -> None:
    if store.read("probe-0") != word:
        raise OSError("another folder of the same name is there")


def _fault(call: Callable[[], None]) -> str:
    try:
        call()
    except FileNotFoundError:
        return "what the leader wrote is not there"
    except OSError as error:
        return f"{error.strerror or error}"
    return ""
