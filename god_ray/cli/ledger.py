"""`god-ray ledger RUN`: what was published, one line per step, while the run goes on or after it ended.

In: a run. Out: a table on stdout, or with --json the records themselves, one JSON object a line. Loads
neither torch nor ray. A damaged ledger is named, after the lines before the damage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from god_ray.cli.options import DEFAULT_STORAGE, Run, Storage

_HEAD = (
    "STEP",
    "EPOCH",
    "ROWS",
    "ROW CHECKSUM",
    "LOSS",
    "LR",
    "GEN",
    "WORKERS",
    "DATA s",
    "STEP s",
    "DIGEST, EVAL",
)
_WIDTHS = (8, 5, 7, 20, 10, 10, 3, 7, 8, 8, 0)


def ledger(
    run: Run,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON with stable keys, one object a line.")
    ] = False,
    from_step: Annotated[int, typer.Option("--from", metavar="STEP", min=1, help="Begin at this step.")] = 1,
) -> None:
    """Print one line per published step. In JSON, `epoch` counts from 0."""
    from god_ray.monitor.ledger import Ledger
    from god_ray.runtime.run_folder import RunFolder

    records = Ledger.read(RunFolder.find(run, storage).ledger, from_step)
    if as_json:
        for record in records:
            typer.echo(json.dumps(record, separators=(",", ":")))
        return
    typer.echo(_line(_HEAD))
    for record in records:
        typer.echo(_line(_cells(record)))


def _cells(record: Mapping[str, Any]) -> tuple[str, ...]:
    from god_ray.monitor.words import number, printable

    timings = record.get("timings") or {}
    evaluated = [f"{printable(name)}={number(value)}" for name, value in (record.get("eval") or {}).items()]
    return (
        str(record["step"]),
        str(record["epoch"] + 1),
        str(record["num_rows"]),
        record["row_checksum"],
        number(record["loss"]),
        number(record["lr"]),
        str(record["generation"]),
        str(record["num_workers"]),
        _seconds(timings.get("data_s")),
        _seconds(sum(timings.values()) if timings else None),
        " ".join([record.get("digest") or "", *evaluated]).strip(),
    )


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
