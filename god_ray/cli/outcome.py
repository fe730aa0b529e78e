"""How a run ended, for the one who waited for it: a summary, and the exit code of its state.

In: a `Result`. Out: prose on stderr, the run's name (or the result as JSON) on stdout, an exit code. Used by
`train` and `resume`.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from god_ray.cli.exits import FAILED, NOT_FINISHED, STOPPED, SUCCEEDED

if TYPE_CHECKING:
    from god_ray.api import Result

_CODES = {"SUCCEEDED": SUCCEEDED.code, "FAILED": FAILED.code, "STOPPED": STOPPED.code}


def code_of(state: str | None) -> int:
    """The exit code of a run's state."""
    return _CODES.get(state or "", NOT_FINISHED.code)


def finish(result: Result, as_json: bool) -> None:
    """Say how it ended and leave with its exit code. It has ended: Ctrl-C changes nothing any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in summary(result):
        typer.echo(line, err=True)
    typer.echo(json.dumps(as_plain(result), indent=1) if as_json else result.name)
    raise typer.Exit(code_of(result.state))


def as_plain(result: Result) -> dict[str, Any]:
    """The result under stable keys."""
    failure, saved = result.failure, _newest(result.place)
    return {
        "name": result.name,
        "state": result.state,
        "reason": result.reason,
        "step": result.step,
        "metrics": finite(result.metrics),
        "digest": result.digest,
        "folder": result.place,
        "checkpoint": saved,
        "failure": failure and {"what": failure.what, "why": failure.why, "fix": failure.fix},
    }


def summary(result: Result) -> Iterator[str]:
    """Lines for a person."""
    from god_ray.cli.options import reference
    from god_ray.cli.words import pairs
    from god_ray.monitor.words import number, printable

    name = reference(result.place)
    yield f"run {result.name} {result.state}: {printable(result.reason)}"
    if result.failure is not None:
        told = str(result.failure).splitlines()
        yield from (f"  {printable(line.rstrip())}" for line in told if line.strip() != result.reason.strip())
    for key, value in result.metrics.items():
        if key != "num_rows":
            yield f"  test {printable(key)} {number(value)}"
    facts = []
    saved = _newest(result.place)
    if result.digest:
        facts.append(("digest", f"{result.digest} after step {result.step}"))
    facts.append(("model", saved or "no checkpoint was written"))
    logs = result.folder / "logs"
    if result.state == "FAILED" and logs.is_dir() and any(logs.iterdir()):
        facts.append(("logs", str(logs)))
    again = "resume" if result.state != "SUCCEEDED" else "verify"
    facts.append(("next", f"god-ray {again} {name}"))
    if saved is not None:
        facts.append(("", f"god-ray export {name} --to model.safetensors"))
    facts.append(("", f"god-ray status {name}"))
    yield from (f"  {line}" for line in pairs(facts))


def _newest(place: str) -> str | None:
    """The newest checkpoint of the run at `place`, which may lie beside others."""
    from god_ray.checkpoint.store import CheckpointStore
    from god_ray.runtime.run_folder import RunFolder

    folder = RunFolder(place)
    store = CheckpointStore(folder.checkpoint_store, 0, run=folder.read()["id"])
    step = max(store.steps(), default=None)
    return None if step is None else store.place(step)


def finite(metrics: dict[str, Any]) -> dict[str, Any]:
    """NaN and infinities as the ledger spells them: JSON has none."""
    import math

    return {
        key: str(value).replace("nan", "NaN").replace("inf", "Infinity")
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for key, value in metrics.items()
    }
