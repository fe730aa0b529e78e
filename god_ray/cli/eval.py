"""`god-ray eval RUN`: measure a checkpoint of a run on its evaluation set, or on other data.

In: a run, which checkpoint, perhaps files. Out: the metrics on stdout (JSON: stable keys), progress and notes
on stderr. In this process, without Ray; the run's folder stays as it is.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from god_ray.cli.options import DEFAULT_STORAGE, AsJson, Best, Run, Step, Storage, aside, prints_on_stderr


def evaluate(
    run: Run,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="File, folder or glob instead of data.eval; may be repeated."),
    ] = None,
    step: Step = None,
    best: Best = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Measure a checkpoint (the newest, if not told which) on the run's evaluation set or other data."""
    from god_ray.cli.outcome import finite
    from god_ray.cli.words import pairs
    from god_ray.monitor.words import counted, number, printable
    from god_ray.runtime.evaluation import evaluate as evaluate_run
    from god_ray.runtime.run_folder import RunFolder

    folder = RunFolder.find(run, storage)
    with prints_on_stderr():
        found = evaluate_run(folder, data or None, step, best, aside)
    for note in found.notes:
        typer.echo(note, err=True)
    if as_json:
        told = {"name": folder.name, "step": found.step, "digest": found.digest, "data": found.data}
        typer.echo(json.dumps(told | {"metrics": finite(found.metrics), "notes": found.notes}, indent=1))
        return
    rows = counted(int(found.metrics["num_rows"]), "row")
    typer.echo(f"{folder.name}, step {found.step}, on {rows} of {', '.join(found.data)}", err=True)
    values = [(name, value) for name, value in found.metrics.items() if name != "num_rows"]
    for line in pairs([(printable(name), number(value)) for name, value in values]):
        typer.echo(line)
