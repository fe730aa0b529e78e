"""`god-ray resume RUN`: go on with a stopped, failed or killed run, with any number of workers.

In: a run. Out: as `train`. Refused, naming the difference, when the data or the spec is not the run's any
more.
"""

from __future__ import annotations

from typing import Annotated

import typer

from god_ray.cli.options import DEFAULT_STORAGE, AsJson, Debug, Run, Storage


def resume(
    run: Run,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of workers; without it, as many as last.")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that has not finished."""
    from god_ray import api
    from god_ray.cli.options import aside, prints_on_stderr
    from god_ray.cli.outcome import finish
    from god_ray.runtime.follow import watch

    typer.echo(f"opening run {run}" + ("" if debug else ", starting Ray") + " ...", err=True)
    with prints_on_stderr():
        result = api.resume(run, storage, workers=workers, debug=debug, watch=watch(plain=debug), say=aside)
    finish(result, as_json)
