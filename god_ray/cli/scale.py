"""`god-ray scale RUN N`: change the number of workers of a run that is going on.

In: a run and a number. Out: the request, durable in the run's folder; what will happen on stderr. The run
itself does it at its next step boundary. Loads neither torch nor ray, so that it answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from god_ray.cli.options import DEFAULT_STORAGE, Run, Storage

if TYPE_CHECKING:
    from god_ray.runtime.run_folder import RunFolder


def scale(
    run: Run,
    workers: Annotated[
        int, typer.Argument(metavar="N", help="Number of workers, from 1 to the run's lanes.")
    ],
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Change the number of workers of a live run; the result stays the same."""
    from god_ray.cli.options import reference
    from god_ray.errors import UserError
    from god_ray.loop.request import Request
    from god_ray.runtime import control
    from god_ray.runtime.run_folder import RunFolder

    folder = RunFolder.find(run, storage)
    record = folder.read()
    _require_lanes(folder, workers, int(record["spec"]["lanes"]))
    _require_live(folder, workers, record)
    now = (record.get("attempts") or [{}])[-1].get("workers")
    asked = control.pending(folder.control)
    if asked == Request("stop"):
        raise UserError(
            f"run {folder.name} was asked to stop, and obeys at its next step boundary.",
            "One command is obeyed at a time, and a stop is not taken back.",
            f"god-ray resume {reference(folder.place)} --workers {workers} goes on with it then.",
        )
    if now == workers and asked is None:
        typer.echo(f"run {folder.name} has that many workers already: {workers}", err=True)
        return
    control.send(folder.control, Request("resize", workers))
    plural = "s" * (workers > 1)
    has = f", it has {now}" if now else ""
    typer.echo(f"run {folder.name}: asked for {workers} worker{plural}{has}.", err=True)
    typer.echo("  After the step it is in, it writes a checkpoint and goes on from there;", err=True)
    typer.echo("  the result stays the same.", err=True)


def _require_lanes(folder: RunFolder, workers: int, lanes: int) -> None:
    from god_ray.errors import UserError

    if not 1 <= workers <= lanes:
        raise UserError(
            f"run {folder.name} cannot have {workers} workers: it has {lanes} lane{'s' * (lanes > 1)}.",
            "Every worker needs a lane; lanes is part of the result and never changes in a run.",
            f"ask for 1 to {lanes}, or start a new run with lanes: {max(workers, 1)}.",
        )


def _require_live(folder: RunFolder, workers: int, record: dict[str, Any]) -> None:
    from god_ray.cli.options import reference
    from god_ray.errors import UserError
    from god_ray.runtime.run_folder import FINAL

    again = f"god-ray resume {reference(folder.place)} --workers {workers}"
    if record["state"] in FINAL:
        raise UserError(
            f"run {folder.name} is {record['state']}: {record['reason']}.",
            "Only a run that is going on can be scaled.",
            f"{again} goes on with it." if record["state"] != "SUCCEEDED" else "there is nothing left to do.",
        )
    if not folder.is_driven():
        raise UserError(
            f"run {folder.name} is not going on: its driver is gone, or on another machine.",
            "A run is scaled on the machine where god-ray train or god-ray resume leads it.",
            again,
        )
