"""`god-ray export RUN --to model.safetensors`: a checkpoint's weights as one file for a plain
`load_state_dict`.

In: a run, a new file to write, which checkpoint. Out: the file, whole or not at all; its path alone on
stdout. Existing files are never touched, folders never made.
"""

from __future__ import annotations

import json
import os.path
from pathlib import Path
from typing import Annotated

import typer

from god_ray.cli.options import DEFAULT_STORAGE, AsJson, Best, Run, Step, Storage


def export(
    run: Run,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The safetensors file to write.")],
    step: Step = None,
    best: Best = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint's weights (the newest, if not told which) as a safetensors file."""
    from god_ray.cli.words import size
    from god_ray.runtime.model import export as export_run
    from god_ray.runtime.run_folder import RunFolder

    folder = RunFolder.find(run, storage)
    _require_new(to)
    written = export_run(folder, to, step, best)
    for skipped in written.skipped:
        typer.echo(f"passed over {skipped}", err=True)
    num_bytes = written.path.stat().st_size
    if as_json:
        told = {"name": folder.name, "path": str(written.path), "num_bytes": num_bytes, "step": written.step}
        typer.echo(json.dumps(told | {"digest": written.digest, "metrics": written.metrics}, indent=1))
        return
    typer.echo(f"{folder.name}, step {written.step}, {size(num_bytes)}. Load it with:", err=True)
    typer.echo(f'  model.load_state_dict(safetensors.torch.load_file("{written.path}"))', err=True)
    typer.echo(written.path)


def _require_new(to: Path) -> None:
    """Before anything is loaded. That it is a folder is said by the export itself."""
    from god_ray.errors import UserError

    if os.path.lexists(to) and not to.is_dir():
        raise UserError(
            f"{to} is already there", "export never overwrites.", "choose another name or remove it"
        )
    if not to.parent.is_dir():
        raise UserError(
            f"{to} cannot be written: there is no folder {to.parent}",
            "export makes no folders.",
            "make it first, or choose another --to",
        )
