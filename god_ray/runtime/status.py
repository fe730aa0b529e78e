"""What can be said of a run from its folder alone: the facts behind `god-ray ls` and `god-ray status`.

In: a run folder, perhaps being written this moment. Out: plain values under stable keys. Must import neither
torch, ray nor numpy, and must take no lock for longer than a look. A damaged record shows as RunNotFound, a
part of the ledger that cannot be read as RunFailed (`facts`); both as a line of its own in a listing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from time import time
from typing import Any

from god_ray.errors import RunFailed, RunNotFound
from god_ray.monitor.newest import newest
from god_ray.runtime.run_folder import FINAL, RunFolder, run_names
from god_ray.storage.store import below

UNREADABLE = "UNREADABLE"
"""In a listing, in place of a state: the run's record is damaged, and `reason` says how."""
_CHECKPOINT = re.compile(r"step-([0-9]{8,})/manifest\.json")


def facts(folder: RunFolder) -> dict[str, Any]:
    """Everything `god-ray status` says. Values not known yet are None. Raises RunNotFound, RunFailed."""
    record = folder.read()
    last = newest(folder.ledger)
    digested = newest(folder.ledger, "digest")
    evaluated = newest(folder.ledger, "eval") if record.get("eval_fingerprint") else None
    saved = checkpoints(folder)
    summary = _summary(folder, record, last)
    there = summary["driven"] and record["state"] in ("RUNNING", "RECOVERING")
    return summary | {
        "steps_per_epoch": record.get("steps_per_epoch"),
        "metrics": evaluated["eval"] if evaluated else None,
        "init_from": record.get("init_from"),
        "workers": record.get("workers", []) if there else [],
        "generation": record.get("generation", 0),
        "recoveries": record.get("recoveries", 0),
        "attempts": len(record.get("attempts", [])),
        "last_checkpoint_step": max(saved, default=None),
        "last_digest": digested["digest"] if digested else None,
        "last_digest_step": digested["step"] if digested else None,
        "created_at": record.get("created_at"),
        "updated_at": last.get("at") if last else None,
    }


def listing(storage: str | Path) -> list[dict[str, Any]]:
    """One summary per run below `storage`, a sweep's trials too, the one started last at the end."""
    found = []
    for name in run_names(storage):
        folder = RunFolder(below(str(storage), name))
        folder.refresh()
        try:
            summary = _summary(folder, folder.read(), newest(folder.ledger))
        except (RunNotFound, RunFailed) as error:
            summary = _summary(folder, {"state": UNREADABLE, "reason": error.what}, None)
        found.append(summary | {"name": name})
    return sorted(found, key=lambda summary: (summary["started_at"] or 0, summary["name"]))


def checkpoints(folder: RunFolder) -> list[int]:
    """The steps of all complete checkpoints: those that have a manifest."""
    matches = map(_CHECKPOINT.fullmatch, folder.checkpoint_store.list())
    return sorted(int(match[1]) for match in matches if match)


def saved_at(folder: RunFolder, step: int) -> float:
    """Unix second at which it became durable; now, if it has been removed this moment."""
    try:
        told = json.loads(folder.checkpoint_store.read(f"step-{step:08d}/manifest.json"))
    except FileNotFoundError:
        return time()
    return float(told["content"]["written_at"])


def _summary(folder: RunFolder, record: dict[str, Any], last: dict[str, Any] | None) -> dict[str, Any]:
    state = record.get("state")
    driven = folder.is_driven()
    reason = record.get("reason")
    if not driven and state not in (*FINAL, UNREADABLE):
        reason = f"its driver is gone; god-ray resume {folder.name}"
    return {
        "name": folder.name,
        "state": state,
        "reason": reason,
        "driven": driven,
        "epoch": last.get("epoch") if last else 0,
        "step": last["step"] if last else 0,
        "num_steps": record.get("num_steps"),
        "loss": last.get("loss") if last else None,
        "num_workers": last.get("num_workers") if last else None,
        "started_at": record.get("started_at"),
        "ended_at": record.get("ended_at"),
        "folder": folder.place,
    }
