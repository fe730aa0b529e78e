"""The command line: one file per command, and the one place where an error becomes an exit code.

In: argv. Out: data and ids on stdout, prose on stderr, an exit code of `god_ray/cli/exits.py`. Must load
neither torch nor ray before a command needs them: command files import typer and the standard library only,
the rest inside their functions.
"""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from god_ray.cli import (
    check,
    exit_code,
    export,
    init,
    ledger,
    ls,
    resume,
    scale,
    status,
    submit,
    sweep,
    train,
    verify,
)
from god_ray.cli.exits import BUG
from god_ray.errors import Bug, GodRayError

TRAIN, LOOK, CLUSTER, START = "Train", "Look", "Cluster", "Start"

app = typer.Typer(
    name="god-ray",
    help="Elastic training on Ray: every row once, the same bits at any number of workers, whatever happens.",
    epilog="A first run: god-ray init DATA, god-ray check run.yaml, god-ray train run.yaml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("god_ray"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("init", rich_help_panel=START)(init.init)
app.command("check", rich_help_panel=START)(check.check)
app.command("train", rich_help_panel=TRAIN)(train.train)
app.command("resume", rich_help_panel=TRAIN)(resume.resume)
app.command("scale", rich_help_panel=TRAIN)(scale.scale)
app.command("sweep", rich_help_panel=TRAIN)(sweep.sweep)
app.command("submit", rich_help_panel=CLUSTER)(submit.submit)
app.command("ls", rich_help_panel=LOOK)(ls.ls)
app.command("status", rich_help_panel=LOOK)(status.status)
app.command("ledger", rich_help_panel=LOOK)(ledger.ledger)
app.command("verify", rich_help_panel=LOOK)(verify.verify)
app.command("export", rich_help_panel=LOOK)(export.export)
app.command("exit-code", rich_help_panel=LOOK)(exit_code.exit_code)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code. A traceback means that god_ray itself is at fault."""
    try:
        app(args=argv, prog_name="god-ray")
    except (
        SystemExit
    ) as ending:  # typer has said what there is to say: help, a usage error, a command's own code
        return ending.code if isinstance(ending.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except GodRayError as error:
        if isinstance(error, Bug):
            return _own_bug(error)
        typer.echo(str(error), err=True)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last line of defence: it is reported as our bug, whole
        return _own_bug(error)
    return 0


def _own_bug(error: Exception) -> int:
    traceback.print_exception(error, file=sys.stderr)
    typer.echo(f"\nthis is a bug in god_ray: {error}\n  Please report it with the text above.", err=True)
    return BUG.code
