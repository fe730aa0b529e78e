"""`god-ray check SPEC`: everything that can be wrong with a run, and what to expect of it, without training.

In: a spec and changes to it. Out: facts on stdout, warnings and faults on stderr (all of them at once); exit
2 on faults. Creates nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from god_ray.cli.exits import USAGE
from god_ray.cli.options import AsJson, Set, Spec, aside, prints_on_stderr

Pages = Annotated[
    bool, typer.Option("--pages", help="Read all data, also of a set that is larger than data.memory_bytes.")
]


def check(spec: Spec, changes: Set = None, pages: Pages = False, as_json: AsJson = False) -> None:
    """Find without training what can be wrong with a run."""
    from god_ray.cli.words import pairs
    from god_ray.monitor.words import counted
    from god_ray.runtime.check import check as look

    with prints_on_stderr():
        checked = look(spec, changes or (), pages=pages, say=aside)
    faults = [asdict(fault) for fault in checked.faults]
    if as_json:
        told = {"ok": not faults, "faults": faults, "warnings": checked.warnings, "facts": checked.facts}
        typer.echo(json.dumps(told, indent=1))
    else:
        for line in pairs(list(_words(checked.facts))):
            typer.echo(line)
    for warning in checked.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if faults:
        typer.echo(f"{spec} has {counted(len(faults), 'fault')}; nothing was started:", err=True)
        for fault in checked.faults:
            typer.echo(f"  {fault}", err=True)
        raise typer.Exit(USAGE.code)
    typer.echo(f"{spec} can be trained: god-ray train {spec}", err=True)


def _words(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """As far as the check came."""
    if "rows" in facts:
        yield from _data(facts)
    if "columns" in facts:
        yield from _model(facts)
    if "rows_per_s" in facts:
        yield from _cost(facts)


def _data(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from god_ray.cli.words import size
    from god_ray.monitor.words import counted

    files, fragments = counted(facts["files"], "file"), counted(facts["fragments"], "fragment")
    where = f"{files}, {fragments}, {counted(facts['row_bytes'], 'byte')} a row"
    yield "rows", f"{facts['rows']} in {where}; shuffle: {facts['shuffle']}"
    if facts["eval_rows"] is not None:
        yield "evaluation", counted(facts["eval_rows"], "row")
    full, last = facts["rows_per_lane"], facts["rows_per_lane_last_step"]
    yield "steps", f"{facts['steps_per_epoch']} an epoch, {facts['num_steps']} in all"
    yield "batch", f"{counted(facts['batch_size'], 'row')}; lanes take {' '.join(map(str, full))}"
    if last != full:
        yield "last step", f"{counted(sum(last), 'row')}; lanes take {' '.join(map(str, last))}"
    group = facts["largest_row_group"]
    most = f"row groups of at most {counted(group['rows'], 'row')}, {size(group['stored_bytes'])} in the file"
    yield "data", f"{size(facts['rows'] * facts['row_bytes'])} decoded; {most}"


def _model(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from god_ray.monitor.words import counted, number, printable
    from god_ray.runtime.taken import words

    for name, what in facts["columns"].items():
        yield "column", f"{printable(name)}: {what['dtype']} {what['shape']}"
    yield (
        "model",
        f"{counted(facts['num_parameters'], 'parameter')} on {facts['device']}, {facts['optimizer']}",
    )
    if facts["init_from"]:
        yield "weights", f"{words(facts['init_from'])}; from {printable(facts['init_from']['path'])}"
    if facts.get("loss") is not None:
        yield "loss", f"{number(facts['loss'])} on the first leaf, the same twice"
    for name, value in (facts.get("metrics") or {}).items():
        yield "evaluated", f"{printable(name)} {number(value)}"
    if "learning_rate" in facts:
        rate = facts["learning_rate"]
        yield "learning rate", f"{rate['first']:g}, at most {rate['highest']:g}, at the end {rate['last']:g}"


def _cost(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from god_ray.cli.words import size
    from god_ray.monitor.words import counted, duration

    memory = facts["memory_bytes"]
    speed = f"{facts['step_s'] * 1e3:.2f} ms with one worker: {facts['rows_per_s']:.0f} rows/s"
    yield "step", f"{speed}, waiting for data apart"
    yield "run", f"about {duration(facts['run_s'])} with one worker, evaluation apart"
    if facts["lane_cost"] is not None:
        leaf = counted(facts["batch_size"], "row")
        yield "lane cost", f"{facts['lane_cost']:.2f} x the time of one leaf of {leaf}"
    names = ("model", "gradients", "optimizer", "checkpoint_copy", "data")
    parts = ", ".join(f"{name.replace('_', ' ')} {size(memory[name])}" for name in names)
    disk = facts["checkpoint_bytes"]
    free = "" if disk["free"] is None else f" of {size(disk['free'])} free"
    yield "checkpoints", f"{size(disk['each'])} each, at most {size(disk['needed'])}{free}"
    yield "memory", f"{size(memory['process_peak'] + memory['data'])} a worker; of these {parts}"
