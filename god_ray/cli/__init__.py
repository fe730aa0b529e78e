"""The command line: one file per command, and the one place where an error becomes an exit code.

In: argv. Out: data and ids on stdout, prose on stderr, an exit code of `god_ray/cli/exits.py`. Must load
neither torch nor ray before a command needs them: command files import typer and the standard library only,
the rest inside their functions.
"""

from __future__ import annotations

import os
import select
import sys
import traceback
from typing import Annotated

import typer

from god_ray.cli import (
    check,
    eval,
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
from god_ray.cli.exits import BUG, INTERRUPTED, UNREAD, USAGE
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
app.command("eval", rich_help_panel=LOOK)(eval.evaluate)
app.command("export", rich_help_panel=LOOK)(export.export)
app.command("exit-code", rich_help_panel=LOOK)(exit_code.exit_code)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code. A traceback means that god_ray itself is at fault."""
    try:
        return _run(argv)
    except BrokenPipeError as error:
        unread = _outputs_without_reader()
        if not unread:
            return _own_bug(error)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in unread:  # else the interpreter, at its end, complains of what is still buffered
            os.dup2(nowhere, output)
        os.close(nowhere)
        return UNREAD.code


def _run(argv: list[str] | None) -> int:
    try:
        app(args=argv, prog_name="god-ray")
    except (
        SystemExit
    ) as ending:  # typer has said what there is to say: help, a usage error, a command's own code
        return _code_of(ending)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        raise
    except GodRayError as error:
        if isinstance(error, Bug):
            return _own_bug(error)
        typer.echo(str(error), err=True)
        return error.exit_code
    except OSError as error:
        if error.errno is None:  # somebody's own, not the system's
            return _own_bug(error)
        names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        typer.echo(": ".join(filter(None, (names, error.strerror or str(error)))), err=True)
        return USAGE.code
    except Exception as error:  # noqa: BLE001 - the last line of defence: it is reported as our bug, whole
        return _own_bug(error)
    return 0


def _code_of(ending: SystemExit) -> int:
    """typer ends in 1 without a word at a broken pipe, whichever it was, and in 130 at a Ctrl-C."""
    *_, (frame, _) = traceback.walk_tb(ending.__traceback__)
    if frame.f_code.co_name == "on_broken_pipe":  # rich's, in --help; it has turned its output away, too
        return UNREAD.code
    before: BaseException | None = ending
    while before is not None:
        if ending.code == 1 and isinstance(before, BrokenPipeError):
            raise before
        if ending.code == INTERRUPTED.code and isinstance(before, KeyboardInterrupt):
            return _interrupted()
        before = before.__context__
    return ending.code if isinstance(ending.code, int) else 0


def _interrupted() -> int:
    typer.echo("interrupted", err=True)
    return INTERRUPTED.code


def _outputs_without_reader() -> list[int]:
    """Those of stdout and stderr whose reader left, as `| head` does."""
    poll = select.poll()
    for output in (1, 2):
        poll.register(output, 0)
    return [output for output, event in poll.poll(0) if event & (select.POLLERR | select.POLLHUP)]


def _own_bug(error: Exception) -> int:
    traceback.print_exception(error, file=sys.stderr)
    typer.echo(f"\nthis is a bug in god_ray: {error}\n  Please report it with the text above.", err=True)
    return BUG.code
