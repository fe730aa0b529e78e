"""`god-ray train SPEC`: train a new run to its end, in the foreground.

In: a spec and changes to it. Out: progress and a summary on stderr, the run's name (or the result as JSON)
alone on stdout, the exit code of the outcome. Ctrl-C once stops at the next step boundary with a checkpoint,
twice at once.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from god_ray.cli.options import STORAGE_VARIABLE, AsJson, Debug, Set, Spec, aside, prints_on_stderr


def train(
    spec: Spec,
    changes: Set = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; it must be new.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Folder or s3:// address for the run, instead of the spec's.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="N|MIN:MAX", help="Number of workers, instead of the spec's.")
    ] = None,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Train a new run to its end."""
    from god_ray import api
    from god_ray.cli.outcome import finish
    from god_ray.errors import RunExists, UserError
    from god_ray.runtime.check import with_all_faults
    from god_ray.runtime.follow import watch
    from god_ray.spec import load

    overrides = [*(changes or ()), *_set(name=name, workers=workers)]
    overrides += _set(storage=storage or _storage_of_environment(spec, overrides))
    with prints_on_stderr():
        try:
            load(spec, overrides)
            typer.echo("trying the recipe" + ("" if debug else ", starting Ray") + " ...", err=True)
            result = api.train(
                spec, debug=debug, watch=watch(plain=debug), say=aside, overrides=tuple(overrides)
            )
        except RunExists:
            raise
        except UserError as error:  # nothing was created: tell all that is wrong, not only what came first
            raise with_all_faults(error, spec, overrides) from error
    finish(result, as_json)


def _set(**values: str | None) -> list[str]:
    """As `--set` would say it; text that looks like a number stays text, but for workers."""
    return [
        f"{key}={value if key == 'workers' else json.dumps(value)}"
        for key, value in values.items()
        if value is not None
    ]


def _storage_of_environment(spec: str, overrides: list[str]) -> str | None:
    """GOD_RAY_STORAGE is a default: a spec that names its storage has the say."""
    wanted = os.environ.get(STORAGE_VARIABLE)
    if not wanted:
        return None
    from god_ray.spec import load

    return wanted if load(spec, overrides).origins.get("storage") == "default" else None
