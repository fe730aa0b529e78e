"""`god-ray status RUN`: where a run stands, from its folder alone, while it goes on or after it ended.

In: a run. Out: its facts on stdout (JSON: stable keys), the exit code of its state: 0 succeeded, 100 failed,
101 not finished, 103 stopped. Loads neither torch nor ray, so that it answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import typer

from god_ray.cli.options import DEFAULT_STORAGE, AsJson, Run, Storage


def status(run: Run, storage: Storage = DEFAULT_STORAGE, as_json: AsJson = False) -> None:
    """Say where a run stands; the exit code is that of its state."""
    from god_ray.cli.outcome import code_of
    from god_ray.cli.words import pairs
    from god_ray.runtime.run_folder import RunFolder
    from god_ray.runtime.status import facts

    found = facts(RunFolder.find(run, storage))
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        for line in pairs(list(_words(found))):
            typer.echo(line)
    raise typer.Exit(code_of(found["state"]))


def _words(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from god_ray.cli.words import when
    from god_ray.monitor.words import counted, number, printable
    from god_ray.runtime.taken import words

    yield "run", found["name"]
    yield "state", f"{found['state']}: {printable(found['reason'] or '')}"
    yield "step", f"{found['step']} of {found['num_steps']}, epoch {found['epoch'] + 1}"
    if found["loss"] is not None:
        yield "loss", number(found["loss"])
    for name, value in (found["metrics"] or {}).items():
        if name != "num_rows":
            yield f"test {printable(name)}", number(value)
    for worker in found["workers"]:
        lanes = worker.get("lanes")
        owned = f", lanes {lanes[0]} to {lanes[1] - 1}" if lanes else ""
        yield f"worker {worker['rank']}", f"{worker['id']}: pid {worker['pid']} on {worker['node']}{owned}"
    yield "generation", f"{found['generation']}, {counted(found['recoveries'], 'recovery', 'recoveries')}"
    yield (
        "checkpoint",
        "none" if found["last_checkpoint_step"] is None else f"step {found['last_checkpoint_step']}",
    )
    if found["last_digest"]:
        yield "digest", f"{found['last_digest']} at step {found['last_digest_step']}"
    if found["init_from"]:
        yield "weights", f"{words(found['init_from'])}; from {printable(found['init_from']['path'])}"
    yield "started", when(found["started_at"])
    if found["ended_at"]:
        yield "ended", when(found["ended_at"])
    yield "folder", found["folder"]
