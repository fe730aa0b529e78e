"""The whole run in this process: no Ray, one worker, every lane. `--debug`, and the reference for tests.

In: an assignment. Out: an outcome. By law 2 it has the digest that any number of workers would have;
breakpoints work. Must not import Ray.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from god_ray.checkpoint.share import WHOLE
from god_ray.checkpoint.store import CheckpointStore
from god_ray.loop.ports import Control, Reporter
from god_ray.monitor.ledger import Ledger
from god_ray.runtime import numerics
from god_ray.runtime.assemble import (
    Ports,
    agree_on_fingerprint,
    assemble,
    build_local,
    origin,
    require_checkpoint,
    require_ledger,
    restore_newest,
)
from god_ray.runtime.assignment import Assignment
from god_ray.runtime.cause import explained
from god_ray.runtime.control import listen
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.writer import BackgroundCheckpoints, Leading, NoReporter
from god_ray.sync.group import Solo


def fit(assignment: Assignment, folder: RunFolder, workers: int, ended: threading.Event) -> dict[str, Any]:
    """One attempt of the driver, here."""
    try:
        return {"outcome": run(assignment, folder, ended=ended)}
    except (Exception, SystemExit) as error:  # the recipe's code may raise anything
        raise explained(error) from error


def run(
    assignment: Assignment,
    folder: RunFolder,
    reporter: Reporter | None = None,
    ended: threading.Event | None = None,
) -> dict[str, Any]:
    """Train here until the outcome. Raises what a worker would raise, directly; RunFailed once `ended`."""
    with closing(listen(folder.control, ended)) as control:
        try:
            return _run(assignment, folder, reporter or NoReporter(), control)
        finally:
            folder.keep_ledger()
            numerics.unpin()


def _run(assignment: Assignment, folder: RunFolder, reporter: Reporter, control: Control) -> dict[str, Any]:
    group = Solo()
    device = torch.device("cuda" if assignment.spec.workers.gpus and torch.cuda.is_available() else "cpu")
    local = build_local(assignment, device)
    record = folder.read()
    fingerprint = agree_on_fingerprint(local, group, record.get("fingerprint"))
    generation = int(record.get("generation", 0)) + 1
    store = CheckpointStore(folder.checkpoint_store, generation, run=record["id"])
    found = restore_newest(local, group, store)
    require_checkpoint(record, found)
    meta = {"fingerprint": fingerprint, "run": folder.name}
    with Ledger.open_writer(folder.ledger, exact=assignment.spec.determinism.mode == "bitwise") as ledger:
        require_ledger(ledger.last_step, found)
        keep = partial(folder.keep_ledger, ledger.sync)
        leading = Leading(assignment.spec.checkpoint, meta, keep, folder.remember)
        saves = BackgroundCheckpoints(store, WHOLE, leading)
        ports = Ports(ledger, saves, control, reporter)
        loop = assemble(local, group, ports, found, generation)
        folder.move("RUNNING", f"training in one process{origin(found, ledger.last_step, local.taken)}")
        me = {"id": f"w{generation}-0", "pid": os.getpid(), "node": socket.gethostname(), "rank": 0}
        workers = [me | {"lanes": [0, assignment.spec.lanes]}]
        folder.update(generation=generation, fingerprint=fingerprint, workers=workers)
        return asdict(loop.run(assignment.plan().cursor_at(0 if found is None else found.step)))
