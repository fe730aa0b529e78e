"""Every line of a ledger as it stands in the files, so that what readers forgive is still seen by `verify`.

In: a ledger folder. Out: its lines in order, each step once; repeated, missing and damaged lines become
named differences and reading goes on. Only what a writer may be doing this moment is forgiven: an unfinished
last line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from os import fstat, stat
from os.path import samestat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from god_ray.errors import RunFailed
from god_ray.monitor import lines
from god_ray.runtime.findings import Findings


class Line(NamedTuple):
    """What `verify` looks at; `eval_rows`: of the step's evaluation, None without one."""

    step: int
    epoch: int
    step_in_epoch: int
    num_rows: int
    row_checksum: int
    digest: str | None
    eval_rows: int | None


def scan(folder: Path, found: Findings) -> Iterator[Line]:
    """Each step once. What is wrong with the files goes to `found` under "ledger"."""
    last = 0
    for path, number, line in _readable(folder, found):
        place = f"{path.name}, line {number}"
        record = _record(line)
        if record is None:
            found.differ("ledger", f"{place} is no record: {line[:60]!r}")
            continue
        step = record.step
        if step <= last:
            found.differ("ledger", f"step {step} stands again in {place}, after step {last}", step)
            continue
        if step > last + 1:
            missing = f"step {last + 1} is" if step == last + 2 else f"steps {last + 1} to {step - 1} are"
            found.differ("ledger", f"{missing} missing: {place} goes on with step {step}", last + 1)
        last = step
        yield record
    sealed = lines.segments(folder) if folder.is_dir() else []
    if sealed and sealed[-1].last > last:
        text = f"{sealed[-1].path.name} was cut: by its name it goes up to step {sealed[-1].last}"
        found.differ("ledger", f"the ledger ends at step {last}, but {text}", last + 1)


def _readable(folder: Path, found: Findings) -> Iterator[tuple[Path, int, bytes]]:
    """Up to a file that cannot be read, which is a difference of its own."""
    try:
        yield from _lines(folder)
    except RunFailed as error:
        found.differ("ledger", f"{error.what}: {error.why}")


def _lines(folder: Path) -> Iterator[tuple[Path, int, bytes]]:
    """(file, line number, line) of all segments and the live file."""
    with ExitStack() as stack:
        live: BinaryIO | None = None
        if (folder / lines.LIVE).exists():
            live = stack.enter_context(lines.open_part(folder / lines.LIVE))
        sealed = False
        for segment in lines.segments(folder) if folder.is_dir() else ():
            sealed = sealed or (live is not None and samestat(fstat(live.fileno()), stat(segment.path)))
            with lines.open_part(segment.path) as file:
                for number, line in enumerate(file, start=1):
                    yield segment.path, number, line
        if live is not None and not sealed:  # else it became one of the segments meanwhile
            for number, line in enumerate(live, start=1):
                if line.endswith(b"\n"):
                    yield folder / lines.LIVE, number, line


def _record(line: bytes) -> Line | None:
    try:
        told: Any = json.loads(line)
        return Line(
            step=int(told["step"]),
            epoch=int(told["epoch"]),
            step_in_epoch=int(told["step_in_epoch"]),
            num_rows=int(told["num_rows"]),
            row_checksum=int(told["row_checksum"]),
            digest=told.get("digest"),
            eval_rows=(told.get("eval") or {}).get("num_rows"),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
