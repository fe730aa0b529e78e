"""Arguments and options that several commands share, and how a run is named to a user.

In: nothing. Out: annotated types for typer, and text. Must import nothing heavy: every command file imports
it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

STORAGE_VARIABLE = "GOD_RAY_STORAGE"
DEFAULT_STORAGE = "runs"
RAYS_ERROR_THREAD = "ray_listen_error_messages"

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's name below --storage, or its folder.")]
Spec = Annotated[str, typer.Argument(metavar="SPEC", help="The run spec, a YAML file.")]
Storage = Annotated[
    str,
    typer.Option(
        "--storage", envvar=STORAGE_VARIABLE, help="The folder or s3:// address that holds the runs."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the spec; may be repeated."),
]
Step = Annotated[int | None, typer.Option("--step", metavar="N", help="The checkpoint of this step.")]
Best = Annotated[bool, typer.Option("--best", help="The best one by checkpoint.keep_best.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="In this process, without Ray: breakpoints work, the digest is the same."),
]


def aside(text: str) -> None:
    """What is going on, on stderr."""
    typer.echo(text, err=True)


def reference(place: str) -> str:
    """What to call the run in a command that the user may copy: its name where that is enough."""
    from god_ray.storage.store import below, is_remote

    storage = os.environ.get(STORAGE_VARIABLE) or DEFAULT_STORAGE
    folder = Path(place)
    if is_remote(place):
        return folder.name if below(storage, folder.name) == place else place
    if Path(storage, folder.name).resolve() == folder.resolve():
        return folder.name
    path = os.path.relpath(folder)
    return str(folder) if path.startswith("..") else path


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """stdout is for the result: what recipes and workers print goes to stderr, except on a terminal."""
    stream = sys.stdout if sys.stdout.isatty() else sys.stderr
    with redirect_stdout(cast(TextIO, _WithoutRay(stream))):
        yield


class _WithoutRay:
    """A stream that leaves out what Ray prints of dead workers: the run says it in its own words."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if threading.current_thread().name == RAYS_ERROR_THREAD:
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
