"""Does a run's folder prove what it claims? The checks behind `god-ray verify`.

In: a run folder, finished or not, perhaps being written this moment. Out: `Findings`: steps and rows
(`verify_steps`), checkpoints whole and with the ledger's digests, an ending that the ledger bears out, and
another run compared step by step (`verify_against`). Changes nothing. What cannot be read is a difference,
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from god_ray.checkpoint.files import folder
from god_ray.errors import CheckpointError
from god_ray.monitor.words import counted
from god_ray.runtime.findings import Findings
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.verify_against import compare
from god_ray.runtime.verify_steps import Seen, check_steps
from god_ray.saying import Say, silent

if TYPE_CHECKING:
    from god_ray.checkpoint.store import CheckpointStore


def verify(folder: RunFolder, against: RunFolder | None = None, say: Say = silent) -> Findings:
    """Check a run, and compare it with another. `say` is told how far it is."""
    from god_ray.checkpoint.store import CheckpointStore

    found = Findings()
    record = folder.read()
    spec = record.run_spec()
    store = CheckpointStore(folder.checkpoint_store, 0, run=record["id"])
    saved = store.steps()  # before the ledger is read: a run that goes on publishes first, then saves
    seen = check_steps(folder, record, spec, found, say)
    _ending(record, seen, found)
    durable = record.get("durable_step") or 0
    _checkpoints(store, saved, durable, seen, spec.determinism.mode == "relaxed", found)
    if against is not None:
        compare(folder, against, found)
    return found


def _ending(record: dict[str, Any], seen: Seen, found: Findings) -> None:
    """A run that says SUCCEEDED must have published all its steps, and the digest that it names."""
    if record.get("state") != "SUCCEEDED":
        return
    result = record.get("result") or {}
    early = bool(result.get("early"))
    planned = result.get("step") if early else record["num_steps"]
    if seen.last_step != planned:
        found.differ("ending", f"the run says SUCCEEDED with {seen.last_step} of {planned} steps published")
    written = seen.digests.get(seen.last_step)
    if written and result.get("digest") and written != result["digest"]:
        text = f"the run ended with digest {result['digest']}, the ledger says {written}"
        found.differ("ending", text, seen.last_step)


def _checkpoints(
    store: CheckpointStore, saved: list[int], durable: int, seen: Seen, relaxed: bool, found: Findings
) -> None:
    """Every file of every checkpoint, and its digest against the ledger's line of that step.

    durable: the newest one that the run remembers, 0 for none; only a newer one may take its place.
    """
    damaged = store.verify()
    for step, text in damaged.items():
        found.differ("checkpoints", f"{folder(step)}: {text}")
    if durable not in damaged and max(saved, default=0) < durable:
        text = f"{folder(durable)} was saved, and it is gone, without a newer one"
        found.differ("checkpoints", text, durable)
    compared = 0
    for step in saved:
        name = folder(step)
        if step > seen.last_step:
            text = f"{name} is newer than the ledger, which ends at step {seen.last_step}"
            found.differ("checkpoints", text, step)
        digest, written = _digest_of(store, step), seen.digests.get(step)
        if relaxed or digest is None or written is None:
            continue  # relaxed: a step that is done again after a failure has other bits
        compared += 1
        if digest != written:
            found.differ("checkpoints", f"{name} has digest {digest}, the ledger says {written}", step)
    if saved:
        equal = f", the digests of {compared} equal to the ledger's" if compared else ""
        found.hold("checkpoints", f"{counted(len(saved), 'checkpoint')} intact{equal}")
    else:
        found.skipped.append("there are no checkpoints")


def _digest_of(store: CheckpointStore, step: int) -> str | None:
    """None if it cannot be read: then it was named above, or the run has pruned it meanwhile."""
    try:
        return str(store.meta(step)["digest"])
    except CheckpointError:
        return None
