"""`god-ray submit SPEC`: train a new run as a job on a running Ray cluster.

In: a spec, the address of a cluster's job server. Out: the job's id alone on stdout, its log on stderr, the
exit code of the outcome. What travels: the spec's folder, without hidden files, runs and large data.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from god_ray.cli.options import STORAGE_VARIABLE, Set, Spec

ADDRESS = "http://127.0.0.1:8265"


def submit(
    spec: Spec,
    address: Annotated[
        str,
        typer.Option(envvar=["RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"], help="The cluster's job server."),
    ] = ADDRESS,
    name: Annotated[str | None, typer.Option(help="Name of the run; it must be new.")] = None,
    changes: Set = None,
    storage: Annotated[
        Path | None, typer.Option(help="Folder for the run, as the cluster's nodes see it.")
    ] = None,
    python: Annotated[
        str,
        typer.Option(help="The cluster's Python that has god_ray.", show_default="this one's path"),
    ] = sys.executable,
    follow: Annotated[bool, typer.Option(help="Wait for the end, with the log on stderr.")] = True,
) -> None:
    """Train a new run as a job on a Ray cluster."""
    from god_ray.jobs import submit as jobs
    from god_ray.jobs.reach import reach

    given = {"name": name, "storage": os.path.abspath(storage) if storage else None}
    overrides = [*(changes or ()), *(f"{key}={json.dumps(text)}" for key, text in given.items() if text)]
    job = jobs.prepare(spec, tuple(overrides), os.environ.get(STORAGE_VARIABLE), python)
    for note in job.package.notes:
        typer.echo(note, err=True)
    with reach(address) as cluster:
        job_id = jobs.submit(cluster, job)
        typer.echo(job_id)
        typer.echo(f"run {job.run} below {job.storage} is job {job_id} at {address}", err=True)
        if not follow:
            return
        try:
            code = jobs.follow(cluster, job_id, lambda text: typer.echo(text, err=True, nl=False))
        except KeyboardInterrupt:
            typer.echo(f"\nthe job goes on; to stop it: ray job stop --address {address} {job_id}", err=True)
            raise
    raise typer.Exit(code)
