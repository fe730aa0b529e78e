"""The entry of a worker: one process of a run, under a Ray TorchTrainer.

In: an assignment. Out: an outcome, as plain data. The leader (rank 0) fills the ports with files and Ray,
the others with nothing. Failures that all workers see alike end the run at once; what one worker alone
meets is raised, and Ray restarts the group from the last checkpoint, if a restart may help.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from functools import partial
from time import time
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointUploadMode

from god_ray import errors
from god_ray.checkpoint import files
from god_ray.checkpoint.share import WHOLE, Share
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import AuditMismatch, FingerprintMismatch, GodRayError, UserError
from god_ray.monitor.ledger import Ledger
from god_ray.monitor.words import counted
from god_ray.plan import worker_lanes
from god_ray.runtime.assemble import (
    Local,
    Ports,
    agree_on_fingerprint,
    agree_on_state,
    assemble,
    build_local,
    origin,
    require_checkpoint,
    require_ledger,
    restore_newest,
)
from god_ray.runtime.assignment import Assignment
from god_ray.runtime.cause import explained
from god_ray.runtime.control import NoControl, listen
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.shared import require_shared
from god_ray.runtime.writer import BackgroundCheckpoints, Leading, NoCheckpoints, NoJournal
from god_ray.sync.group import Group, TorchGroup

AGREED = (AuditMismatch, FingerprintMismatch)


class RayReporter:
    """A durable checkpoint becomes a Ray checkpoint, in place; a barrier over all workers."""

    def __init__(self, leader: bool) -> None:
        self.leader = leader

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        storage = ray.train.get_context().get_storage()
        path = f"{storage.experiment_fs_path}/checkpoints/{files.folder(step)}"
        ray.train.report(
            {"step": step, **metrics},
            checkpoint=Checkpoint(path, storage.storage_filesystem) if self.leader else None,
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Ray Train's `train_loop_per_worker`. Returns {"outcome": {...}} or {"failure": GodRayError}."""
    assignment: Assignment = config["assignment"]
    device = ray.train.torch.get_device()
    group = TorchGroup(device)
    folder = RunFolder(assignment.place)
    try:
        require_shared(folder.store, group)
    except UserError as error:  # which all workers raise alike
        return {"failure": error}
    with _written_down(folder, group.rank):
        try:
            if group.rank == 0:
                _say_building(folder, group.size)
            local = _build_together(assignment, device, group)
            return {"outcome": _run(local, folder, group)}
        except (Exception, SystemExit) as error:  # the recipe may raise anything; Ray gets it explained
            agreed = _told(explained(error))
            if agreed is not None:
                return {"failure": agreed}
            # No name may keep it: with its frames the process group would stay, and peers would wait.
            raise explained(error) from error


def _say_building(folder: RunFolder, workers: int) -> None:
    """From here on it is the recipe that takes time: imports, building, weights. Recovery keeps its cause."""
    if folder.read()["state"] in ("STARTING", "WAITING"):
        folder.move("STARTING", f"{counted(workers, 'worker')} started, building the recipe")


def _told(failure: GodRayError) -> GodRayError | None:
    """Write a failure into the log. Returns it if all workers have it alike: the run may end at once."""
    print(failure, file=sys.stderr)
    return failure if isinstance(failure, AGREED) or failure.data.get("agreed") else None


def _build_together(assignment: Assignment, device: torch.device, group: Group) -> Local:
    """Build on all workers; if it fails on one, all raise that worker's error."""
    local, failure = None, None
    try:
        local = build_local(assignment, device)
    except GodRayError as error:
        failure = error
    told = None if failure is None else [type(failure).__name__, failure.what, failure.why, failure.fix]
    said = [json.loads(data) for data in group.gather_bytes(json.dumps(told).encode())]
    first = next((rank for rank, error in enumerate(said) if error is not None), None)
    if first is not None:
        name, what, why, fix = said[first]
        kind: type[GodRayError] = getattr(errors, name)
        raise kind(what if all(said) else f"worker {first}: {what}", why, fix, agreed=True) from failure
    assert local is not None
    return local


@contextmanager
def _written_down(folder: RunFolder, rank: int) -> Iterator[None]:
    """What the recipe prints goes to the run's logs, one file a worker."""
    logs = folder.path / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    logging.getLogger("ray.train").setLevel(logging.WARNING)
    with (
        (logs / f"worker-{rank}.log").open("a", buffering=1) as file,
        redirect_stdout(file),
        redirect_stderr(file),
    ):
        yield


def _run(local: Local, folder: RunFolder, group: Group) -> dict[str, Any]:
    record = folder.read()
    fingerprint = agree_on_fingerprint(local, group, record.get("fingerprint"))
    generation = int(group.gather_bytes(str(int(record.get("generation", 0)) + 1).encode())[0])
    store = CheckpointStore(folder.checkpoint_store, generation, run=record["id"])
    found = restore_newest(local, group, store)
    require_checkpoint(record, found)
    agree_on_state(local, group)
    ports = _ports(local, folder, store, group, fingerprint)
    try:
        published = 0
        if isinstance(ports.journal, Ledger):
            published = ports.journal.last_step
            require_ledger(published, found)
        loop = assemble(local, group, ports, found, generation)
        doing = f"training{origin(found, published, local.taken)}"
        _announce(local, folder, group, generation, fingerprint, doing)
        outcome = loop.run(local.assignment.plan().cursor_at(0 if found is None else found.step))
        print(f"read: {json.dumps(loop.step.feed.counters)}", file=sys.stderr)
        return asdict(outcome)
    finally:
        ports.journal.close()
        ports.control.close()
        if group.rank == 0:
            folder.keep_ledger()


def _ports(
    local: Local, folder: RunFolder, store: CheckpointStore, group: Group, fingerprint: dict[str, str]
) -> Ports:
    """The leader's are real; the others hear from it in its notes."""
    leader = group.rank == 0
    share = Share(group.rank, group.size) if local.alike else WHOLE
    reporter = RayReporter(leader)
    if not leader:
        saves = BackgroundCheckpoints(store, share, None) if local.alike else NoCheckpoints()
        return Ports(NoJournal(), saves, NoControl(), reporter)
    spec = local.assignment.spec
    meta = {"fingerprint": fingerprint, "run": folder.name}
    folder.refresh()  # another machine may have led before
    ledger = Ledger.open_writer(folder.ledger, exact=spec.determinism.mode == "bitwise")
    keep = partial(folder.keep_ledger, ledger.sync)
    return Ports(
        ledger,
        BackgroundCheckpoints(store, share, Leading(spec.checkpoint, meta, keep, folder.remember)),
        listen(folder.control),
        reporter,
    )


def _announce(
    local: Local,
    folder: RunFolder,
    group: Group,
    generation: int,
    fingerprint: dict[str, str],
    doing: str,
) -> None:
    """The leader writes down who trains."""
    me = {
        "id": f"w{generation}-{group.rank}",
        "pid": os.getpid(),
        "node": socket.gethostname(),
        "rank": group.rank,
    }
    workers = [json.loads(data) for data in group.gather_bytes(json.dumps(me).encode())]
    for worker, lanes in zip(workers, worker_lanes(local.assignment.spec.lanes, group.size)):
        worker["lanes"] = list(lanes)
    if group.rank == 0:
        before = folder.read()
        if before.get("state") == "RECOVERING":
            doing += f"; the workers are new: {before['reason']}"
        folder.move("RUNNING", doing)
        folder.update(
            generation=generation,
            fingerprint=fingerprint,
            workers=workers,
            generation_started_at=round(time(), 3),
        )
