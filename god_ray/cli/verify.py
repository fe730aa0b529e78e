"""`god-ray verify RUN [--against OTHER]`: does the run's folder prove what it claims?

In: a run, and one to compare it with. Out: what held and what differs on stdout; exit 0, or 100 with each
difference named. Changes nothing; a run that is going on can be verified as far as it has come.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from god_ray.cli.exits import FAILED
from god_ray.cli.options import DEFAULT_STORAGE, AsJson, Run, Storage, aside

if TYPE_CHECKING:
    from god_ray.runtime.findings import Findings


def verify(
    run: Run,
    against: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Compare losses and digests with this run's.")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Check steps, rows, checkpoints and digests of a run."""
    from god_ray.runtime.run_folder import RunFolder
    from god_ray.runtime.verify import verify as check

    folder = RunFolder.find(run, storage)
    other = None if against is None else RunFolder.find(against, storage)
    found = check(folder, other, aside)
    if as_json:
        typer.echo(json.dumps(_plain(folder.name, other.name if other else None, found), indent=1))
    else:
        _print(folder.name, found)
    if not found.ok:
        raise typer.Exit(FAILED.code)


def _plain(name: str, against: str | None, found: Findings) -> dict[str, object]:
    return {
        "name": name,
        "against": against,
        "ok": found.ok,
        "held": found.held,
        "skipped": found.skipped,
        "differences": [asdict(difference) for difference in found.differences],
        "num_differences": found.counts.total(),
    }


def _print(name: str, found: Findings) -> None:
    from god_ray.monitor.words import counted

    for text in found.held:
        typer.echo(f"ok       {text}")
    for text in found.skipped:
        typer.echo(f"skipped  {text}")
    for difference in found.differences:
        typer.echo(f"DIFFERS  {difference.check}: {difference.text}")
    more = found.counts.total() - len(found.differences)
    if more:
        typer.echo(f"DIFFERS  and {more} more like these")
    verdict = "verified" if found.ok else f"NOT verified, {counted(found.counts.total(), 'difference')}"
    typer.echo(f"{name}: {verdict}", err=True)
