"""Reading a ledger folder while it is being written: all records from a step on, or only what is new.

A folder holds immutable segments "<first>-<last>.jsonl" and "live.jsonl", which grows until it becomes one.
In: a folder. Out: records in order, each step once, no torn line. Takes no lock and writes nothing.
Failure shows as RunFailed naming the file, line or missing steps. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from god_ray.errors import RunFailed

LIVE = "live.jsonl"
_SEGMENT = re.compile(r"([0-9]+)-([0-9]+)\.jsonl")


@dataclass(frozen=True, order=True)
class Segment:
    first: int
    last: int
    path: Path


def segment_name(first: int, last: int) -> str:
    return f"{first:08d}-{last:08d}.jsonl"


def segment(path: Path) -> Segment | None:
    """What the name says; None if it is no segment's."""
    match = _SEGMENT.fullmatch(path.name)
    return Segment(int(match[1]), int(match[2]), path) if match else None


def segments(folder: Path) -> list[Segment]:
    """In order of steps."""
    return sorted(found for name in os.listdir(folder) if (found := segment(folder / name)))


def open_part(path: Path) -> BinaryIO:
    """A segment or the live file, to be read. Raises FileNotFoundError; else RunFailed with the reason."""
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunFailed(
            f"{path} cannot be read",
            f"{error.strerror}",
            "make it a file that can be read; if it was replaced, restore it from a copy",
        ) from error


def read(folder: Path, from_step: int = 0) -> Iterator[dict[str, Any]]:
    """Records with step >= `from_step`, up to what is published when the end is reached. No folder: none."""
    follower = Follower(folder, from_step)
    try:
        yield from follower.records()
    finally:
        follower.close()


class Follower:
    """Remembers where it is: each `poll` gives the records published since the last one, across seals."""

    def __init__(self, folder: Path, from_step: int = 0) -> None:
        self.folder = folder
        self.next_step = max(from_step, 1)
        self._file: BinaryIO | None = None

    def poll(self) -> list[dict[str, Any]]:
        return list(self.records())

    def records(self) -> Iterator[dict[str, Any]]:
        """The same, one by one."""
        yield from self._drain()
        while self._moved():
            self.close()
            # Open the live file before listing: lines that leave it in between are then in a listed segment.
            self._file = self._open_live()
            yield from self._segments()
            yield from self._drain()
            if self._file is None:
                return

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_live(self) -> BinaryIO | None:
        try:
            return open_part(self.folder / LIVE)
        except FileNotFoundError:
            return None

    def _moved(self) -> bool:
        """Is the live file another one than ours?"""
        if self._file is None:
            return self.folder.is_dir()
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.folder / LIVE))
        except FileNotFoundError:
            return True

    def _segments(self) -> Iterator[dict[str, Any]]:
        for segment in segments(self.folder):
            if segment.last < self.next_step:
                continue
            with open_part(segment.path) as file:
                yield from self._take(file, segment.path, torn=False)
            if self.next_step <= segment.last:
                raise RunFailed(
                    f"{segment.path} ends at step {self.next_step - 1}",
                    f"by its name it goes up to step {segment.last}, so it was cut",
                    "restore the file from a backup",
                )

    def _drain(self) -> Iterator[dict[str, Any]]:
        if self._file is not None:
            yield from self._take(self._file, self.folder / LIVE, torn=True)

    def _take(self, file: BinaryIO, path: Path, torn: bool) -> Iterator[dict[str, Any]]:
        """Whole lines from the file's position on; the position stays behind the last whole one."""
        while True:
            start = file.tell()
            line = file.readline()
            if not line.endswith(b"\n"):
                file.seek(start)
                return
            record = _parse(line)
            if record is None:
                if torn and not file.read(1):
                    file.seek(start)  # garbage at the very end is a power cut's; the next writer drops it
                    return
                raise RunFailed(
                    f"{path} has a damaged line at byte {start}",
                    f"it is no record: {line[:60]!r}",
                    "restore the file from a backup",
                )
            if record["step"] < self.next_step:
                continue
            if record["step"] > self.next_step:
                raise RunFailed(
                    f"the ledger under {self.folder} lacks step {self.next_step}",
                    f"{path.name} goes on with step {record['step']}",
                    "restore the missing segment from a backup",
                )
            self.next_step += 1
            yield record


def step_of(line: bytes) -> int:
    """The step of a whole line, 0 if it is no record."""
    record = _parse(line)
    return record["step"] if record else 0


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:  # UnicodeDecodeError is one
        return None
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        return None
    return record
