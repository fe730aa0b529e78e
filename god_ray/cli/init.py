"""`god-ray init [DATA]`: a recipe.py and a run.yaml to start from, written for the columns of the data.

In: a Parquet file or folder (or nothing: templates with marked places). Out: two files that `god-ray check`
accepts; their paths on stdout, what was guessed on stderr. Existing files are never touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    data: Annotated[
        Path | None,
        typer.Argument(help="A Parquet file, or a folder of them; without it, templates to fill in."),
    ] = None,
    folder: Annotated[Path, typer.Option("--dir", help="Where to write.")] = Path("."),
    label: Annotated[str | None, typer.Option(help="The column to predict, if the guess is wrong.")] = None,
) -> None:
    """Write a recipe.py and a run.yaml to start from."""
    from god_ray.cli.starter import columns, templates
    from god_ray.errors import UserError

    targets = {name: folder / name for name in ("recipe.py", "run.yaml")}
    taken = [str(path) for path in targets.values() if path.exists()]
    if taken:
        raise UserError(
            f"{' and '.join(taken)} already there",
            "init never overwrites.",
            "use another --dir, or move them away",
        )
    if data is None:
        texts, notes = templates.blank(), []
    else:
        table = columns.look_at(data, label)
        texts, notes = templates.filled(table, folder), table.notes
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in targets.items():
        path.write_text(texts[name], encoding="utf-8")
        typer.echo(path)
    for note in notes:
        typer.echo(note, err=True)
    marked = [
        f"{targets[name]}:{number}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if templates.MARK in line
    ]
    if marked:
        typer.echo(f"Edit these lines (marked {templates.MARK}): {', '.join(marked)}", err=True)
    typer.echo(f"Next: god-ray check {targets['run.yaml']}", err=True)
