"""A checkpoint's manifest: what the folder must contain, to the last bit, and who wrote it.

Answers: is this folder exactly what was saved? The manifest is written last and carries a hash of itself.
Must not know tensors, nor which checkpoint is wanted. Failure shows as NotIntact or OtherFormat, for `store`.
The envelope {"format", "content", "xxh3_128"} is the same in every format, so that any version can name it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import xxhash

from god_ray.checkpoint.codec import JSON
from god_ray.checkpoint.files import MANIFEST

_CHUNK_BYTES = 1 << 22


class NotIntact(Exception):
    """The folder is not what was saved; the message says what differs."""


class Unfinished(NotIntact):
    """There is no manifest: a save that was killed, or one that is being written this moment."""


class OtherFormat(Exception):
    """The folder is sound but of a format that this version does not read."""


@dataclass(frozen=True)
class FileFact:
    num_bytes: int
    xxh3_128: str

    @classmethod
    def of(cls, content: bytes) -> FileFact:
        return cls(len(content), xxhash.xxh3_128_hexdigest(content))


@dataclass(frozen=True)
class Manifest:
    """`meta` is encoded by `codec`; `written_at` is in unix seconds."""

    NAME: ClassVar[str] = MANIFEST
    FORMAT: ClassVar[int] = 2
    READABLE: ClassVar[tuple[int, ...]] = (1, 2)
    """In format 1 the names of files said neither attempt nor share."""

    step: int
    attempt: int
    run: str
    digest: str
    written_at: float
    meta: JSON
    files: dict[str, FileFact]

    def text(self) -> str:
        content = _canonical(asdict(self))
        envelope = {"format": self.FORMAT, "content": asdict(self), "xxh3_128": _hash(self.FORMAT, content)}
        return json.dumps(envelope, indent=1, allow_nan=False) + "\n"

    @classmethod
    def parse(cls, content: bytes) -> Manifest:
        """NotIntact if empty or altered; OtherFormat, naming it, if sound but of another format."""
        try:
            envelope = json.loads(content)
            version, inside, said = envelope["format"], envelope["content"], envelope["xxh3_128"]
        except (ValueError, KeyError, TypeError) as error:  # UnicodeDecodeError is a ValueError
            raise NotIntact(f"{cls.NAME} is no manifest ({len(content)} bytes): {error!r}") from error
        if _hash(version, _canonical(inside)) != said:
            raise NotIntact(f"{cls.NAME} was altered: its own hash does not match")
        if version not in cls.READABLE:
            reads = " and ".join(map(str, cls.READABLE))
            raise OtherFormat(f"it is of format {version}; this version of god_ray reads formats {reads}")
        try:
            files = {name: FileFact(**fact) for name, fact in inside.pop("files").items()}
            return cls(files=files, **inside)
        except (KeyError, TypeError, AttributeError) as error:
            raise NotIntact(f"{cls.NAME} is sound, and no manifest of ours: {error!r}") from error

    def check_sizes(self, found: Mapping[str, int]) -> None:
        """Every file there, with its size; `found`: what there is. Those it does not name are ignored."""
        for name, fact in self.files.items():
            if name not in found:
                raise NotIntact(f"{name} is missing")
            if found[name] != fact.num_bytes:
                raise NotIntact(f"{name} has {found[name]} bytes instead of {fact.num_bytes}")

    def check_file(self, name: str, path: Path) -> None:
        """Its size and hash."""
        found = fact_of(path)
        if found.num_bytes != self.files[name].num_bytes:
            raise NotIntact(f"{name} has {found.num_bytes} bytes instead of {self.files[name].num_bytes}")
        if found != self.files[name]:
            raise NotIntact(f"the content of {name} was altered (hash {found.xxh3_128})")


def fact_of(path: Path) -> FileFact:
    hasher = xxhash.xxh3_128()
    num_bytes = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            num_bytes += len(chunk)
    return FileFact(num_bytes, hasher.hexdigest())


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _hash(version: Any, content: str) -> str:
    return xxhash.xxh3_128_hexdigest(f"{version}\n{content}".encode())
