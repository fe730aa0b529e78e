"""A sweep from its spec to its result: what is checked before, what is kept, which trial is the best.

In: a spec with a `sweep:` section. Out: a `Swept`, and `<storage>/<sweep>/` with a run folder per trial and
`sweep.json`. Must not know how trials are run. A sweep without one valid result raises the first cause.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from time import strftime
from typing import Any

from god_ray.errors import GodRayError, RunExists, RunFailed, UserError
from god_ray.runtime.cluster import connecting, require_room
from god_ray.runtime.numerics import prepare_process
from god_ray.saying import Say
from god_ray.spec import RunSpec, Sweep, load
from god_ray.spec.paths import absolute
from god_ray.storage.store import is_remote
from god_ray.sweep.ranking import Row, ranked


@dataclass(frozen=True)
class Swept:
    """A finished sweep; `rows` are its trials, best first. `interrupted`: Ctrl-C ended it early."""

    name: str
    metric: str
    mode: str
    folder: Path
    rows: list[Row]
    interrupted: bool = False

    @property
    def best(self) -> Row | None:
        return self.rows[0] if self.rows and self.rows[0].valid else None

    def as_plain(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "metric": self.metric,
            "mode": self.mode,
            "folder": str(self.folder),
            "best": None if self.best is None else str(self.best.folder),
            "interrupted": self.interrupted,
            "trials": [row.as_plain() for row in self.rows],
        }


def run(spec: str, overrides: tuple[str, ...], default_storage: str | None, say: Say) -> Swept:
    """Run a sweep to its end. Raises UserError before anything is made, RunFailed without a valid result."""
    loaded = load(spec, overrides)
    sweep = _sweep_of(loaded.spec, spec)
    storage = loaded.spec.storage
    if default_storage and loaded.origins["storage"] == "default":
        storage = absolute(default_storage, Path.cwd())
    if is_remote(storage):
        raise UserError(
            f"storage = {storage} cannot hold a sweep.",
            "Ray Tune's own files and the trials lie in a folder that all nodes share.",
            "give a folder as --storage.",
        )
    name = loaded.spec.name or f"sweep-{strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    folder = Path(storage) / name
    order = {
        "spec": str(loaded.path),
        "overrides": list(overrides),
        "folder": str(folder),
        "metric": sweep.metric,
        "mode": sweep.mode,
    }
    workers = loaded.spec.workers.model_copy(update={"min": 1, "max": 1})
    one = loaded.spec.model_copy(update={"workers": workers})
    prepare_process(one)
    say("trying the recipe, starting Ray ...")
    with connecting(one) as connection:
        from god_ray.runtime.assignment import prepare
        from god_ray.runtime.attempt import try_leaf
        from god_ray.runtime.equipment import equip

        try_leaf(equip(prepare(loaded, str(folder), say, say), None, connection, say), say)
        require_room(one, 1, grows=not connection().fixed)
        _create(folder)
        from god_ray.sweep.tuning import search

        rows, errors, interrupted = search(one, sweep, order, say)
    swept = Swept(name, sweep.metric, sweep.mode, folder, ranked(rows, sweep.mode), interrupted)
    (folder / "sweep.json").write_text(json.dumps(swept.as_plain(), indent=1) + "\n")
    if swept.best is None and not interrupted:
        raise _nothing_valid(swept, errors)
    return swept


def _sweep_of(spec: RunSpec, path: str) -> Sweep:
    if spec.sweep is None:
        raise UserError(
            f"{path} has no sweep section.",
            "It says what is drawn for which key, and which metric decides.",
            "add for example `sweep: {metric: accuracy, mode: max, trials: 10, "
            "search: {config.lr: {loguniform: [1e-4, 1e-1]}}}`",
        )
    return spec.sweep


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise RunExists(
            f"{folder.name!r} exists already in {folder.parent}.",
            "A sweep is never started twice under one name.",
            "give another --name.",
        ) from None
    except OSError as error:
        raise UserError(
            f"{folder} cannot be created: {error.strerror}.", "", "choose another --storage."
        ) from error


def _nothing_valid(swept: Swept, errors: list[GodRayError]) -> GodRayError:
    """The first cause, if trials failed; else all of them diverged."""
    if errors:
        return errors[0]
    return RunFailed(
        f"no valid result: {swept.metric} is not a number in any of {len(swept.rows)} trials.",
        f"Their runs are in {swept.folder}.",
        "search a range in which training does not diverge.",
    )
