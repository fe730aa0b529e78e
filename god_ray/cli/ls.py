"""`god-ray ls`: the runs below a storage folder, the one started last at the end.

In: a storage folder. Out: a table on stdout, or a JSON list with stable keys. Loads neither torch nor ray.
"""

from __future__ import annotations

import json

import typer

from god_ray.cli.options import DEFAULT_STORAGE, AsJson, Storage


def ls(storage: Storage = DEFAULT_STORAGE, as_json: AsJson = False) -> None:
    """List the runs."""
    from god_ray.cli.words import table, when
    from god_ray.monitor.words import number, printable
    from god_ray.runtime.status import listing

    runs = listing(storage)
    if as_json:
        typer.echo(json.dumps(runs, indent=1))
        return
    if not runs:
        typer.echo(f"no runs in {storage}", err=True)
        return
    rows = [
        (
            run["name"],
            run["state"] or "-",
            f"{run['step']}/{run['num_steps'] or '?'}",
            "-" if run["loss"] is None else number(run["loss"]),
            when(run["started_at"]),
            printable(run["reason"] or ""),
        )
        for run in runs
    ]
    for line in table(("NAME", "STATE", "STEP", "LOSS", "STARTED", "REASON"), rows):
        typer.echo(line)
