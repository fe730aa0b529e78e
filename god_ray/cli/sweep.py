"""`god-ray sweep SPEC`: many runs of one spec with other values, and which of them is best.

In: a spec with a `sweep:` section. Out: a line per trial and a table on stderr; on stdout the folder of the
best run, or everything as JSON. Ctrl-C once stops all trials with checkpoints (103).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from god_ray.cli.options import STORAGE_VARIABLE, AsJson, Set, Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from god_ray.sweep.search import Swept


def sweep(
    spec: Spec,
    changes: Set = None,
    name: Annotated[str | None, typer.Option(help="Name of the sweep; it must be new.")] = None,
    storage: Annotated[Path | None, typer.Option(help="Folder for the sweep, instead of the spec's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a spec many times with other values, and name the best."""
    from god_ray.cli.exits import STOPPED
    from god_ray.cli.options import prints_on_stderr
    from god_ray.sweep import search

    given = {"name": name, "storage": str(storage) if storage else None}
    overrides = [*(changes or ()), *(f"{key}={json.dumps(text)}" for key, text in given.items() if text)]
    storage_default = os.environ.get(STORAGE_VARIABLE)
    with prints_on_stderr():
        swept = search.run(spec, tuple(overrides), storage_default, lambda text: typer.echo(text, err=True))
    for line in _table(swept):
        typer.echo(line, err=True)
    if as_json:
        typer.echo(json.dumps(swept.as_plain(), indent=1))
    elif swept.best is not None:
        typer.echo(swept.best.folder)
    if swept.interrupted:
        raise typer.Exit(STOPPED.code)


def _table(swept: Swept) -> Iterator[str]:
    """Best first."""
    from god_ray.cli.words import table
    from god_ray.monitor.words import number, printable

    keys = list(dict.fromkeys(key for row in swept.rows for key in row.values))
    rows = [
        (
            row.name,
            "-" if row.value is None else number(row.value),
            *(_word(row.values.get(key)) for key in keys),
            str(row.evaluations),
            str(row.step),
            f"{row.state}: {printable(row.reason)}",
        )
        for row in swept.rows
    ]
    yield from table(("TRIAL", swept.metric, *keys, "EVALS", "STEP", "STATE"), rows)


def _word(value: object) -> str:
    from god_ray.monitor.words import number, printable

    return number(value) if isinstance(value, float) else printable(str(value))
