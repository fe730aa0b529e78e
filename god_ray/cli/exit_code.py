"""`god-ray exit-code [N]`: what an exit code means and what to do about it.

In: a number, or none. Out: the table, or one page, on stdout. All text comes from `god_ray/cli/exits.py`.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer


def exit_code(
    code: Annotated[int | None, typer.Argument(metavar="[N]", help="The exit code; without it, all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="code, name, meaning, page as JSON.")] = False,
) -> None:
    """Explain an exit code."""
    from dataclasses import asdict

    from god_ray.cli.exits import BY_CODE, EXITS
    from god_ray.errors import UserError

    if code is not None and code not in BY_CODE:
        raise UserError(
            f"{code} is not an exit code of god-ray",
            f"There are {', '.join(map(str, BY_CODE))}.",
            "look at the table: god-ray exit-code",
        )
    chosen = EXITS if code is None else (BY_CODE[code],)
    if as_json:
        pages = [asdict(item) | {"page": item.page.strip()} for item in chosen]
        typer.echo(json.dumps(pages if code is None else pages[0]))
    elif code is None:
        for item in chosen:
            typer.echo(f"{item.code:>3}  {item.name:<13} {item.meaning}")
    else:
        typer.echo(f"{chosen[0].code}: {chosen[0].name}. {chosen[0].meaning}\n\n{chosen[0].page.strip()}")
