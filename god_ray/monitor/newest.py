"""The newest record of a ledger, or the newest that holds a certain key, without reading the whole of it.

In: a ledger folder and a key. Out: one record or None. Reads backwards from the end, a block at a time,
takes no lock, and passes over a torn or damaged last line: to name damage is for `lines` and `god-ray
verify`. A file that cannot be read shows as RunFailed. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from god_ray.monitor import lines

_BLOCK_BYTES = 1 << 18


def newest(folder: Path, key: str = "step") -> dict[str, Any] | None:
    """The record with the highest step among those that have `key`. None without a folder, or without one."""
    marker = json.dumps(key).encode()
    for block in _blocks(folder):
        if marker not in block:
            continue
        for line in reversed(block.splitlines(keepends=True)):
            if marker in line and line.endswith(b"\n"):
                record = _record(line)
                if record is not None and record.get(key) is not None:
                    return record
    return None


def _blocks(folder: Path) -> Iterator[bytes]:
    """Whole lines in blocks, newest block first."""
    with suppress(FileNotFoundError), lines.open_part(folder / lines.LIVE) as live:
        yield from _backwards(live)
    # Listed afterwards: what a seal moves in between is then seen twice, never missed.
    if folder.is_dir():
        for segment in reversed(lines.segments(folder)):
            with lines.open_part(segment.path) as file:
                yield from _backwards(file)


def _backwards(file: BinaryIO) -> Iterator[bytes]:
    """Ends of lines without their beginning wait until the block before them has been read."""
    stop, rest = os.fstat(file.fileno()).st_size, b""
    while stop > 0:
        start = max(0, stop - _BLOCK_BYTES)
        file.seek(start)
        block = file.read(stop - start) + rest
        cut = block.find(b"\n") + 1 if start else 0
        if start and not cut:
            rest = block
        else:
            rest = block[:cut]
            yield block[cut:]
        stop = start


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:  # UnicodeDecodeError is one
        return None
    return record if isinstance(record, dict) else None
