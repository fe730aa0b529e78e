"""A checkpoint's manifest: what the folder must contain, to the last bit, and who wrote it.

Answers: is this folder exactly what was saved? The manifest is written last and carries a hash of itself.
Must not know tensors, nor which checkpoint is wanted. Failure shows as NotIntact or OtherFormat, for `store`.
The envelope {"format", "content", "xxh3_128"} is the same in every format, so that any version can name it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import xxhash

from god_ray.checkpoint.codec import JSON

_CHUNK_BYTES = 1 << 22


class NotIntact(Exception):
    """The folder is not what was saved; the message says what differs."""


class OtherFormat(Exception):
    """The folder is sound but of a format that this version does not read."""


@dataclass(frozen=True)
class FileFact:
    num_bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class Manifest:
    """`meta` is encoded by `codec`; `written_at` is in unix seconds."""

    NAME: ClassVar[str] = "manifest.json"
    FORMAT: ClassVar[int] = 1

    step: int
    attempt: int
    run: str
    digest: str
    written_at: float
    meta: JSON
    files: dict[str, FileFact]

    def write(self, folder: Path) -> None:
        content = _canonical(asdict(self))
        envelope = {"format": self.FORMAT, "content": asdict(self), "xxh3_128": _hash(self.FORMAT, content)}
        (folder / self.NAME).write_text(json.dumps(envelope, indent=1, allow_nan=False) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """NotIntact if missing, empty or altered; OtherFormat, naming it, if sound but of another format."""
        try:
            text = (folder / cls.NAME).read_text("utf-8")
        except FileNotFoundError:
            raise NotIntact(f"{cls.NAME} is missing") from None
        except (OSError, UnicodeDecodeError) as error:
            raise NotIntact(f"{cls.NAME} cannot be read: {error}") from error
        try:
            envelope = json.loads(text)
            version, content, said = envelope["format"], envelope["content"], envelope["xxh3_128"]
        except (ValueError, KeyError, TypeError) as error:
            raise NotIntact(f"{cls.NAME} is no manifest ({len(text)} characters): {error!r}") from error
        if _hash(version, _canonical(content)) != said:
            raise NotIntact(f"{cls.NAME} was altered: its own hash does not match")
        if version != cls.FORMAT:
            raise OtherFormat(f"it is of format {version}; this version of god_ray reads format {cls.FORMAT}")
        files = {name: FileFact(**fact) for name, fact in content.pop("files").items()}
        return cls(files=files, **content)

    def check_sizes(self, folder: Path) -> None:
        """Cheap: every file there, with its size."""
        for name, fact in self.files.items():
            try:
                found = (folder / name).stat().st_size
            except OSError as error:
                raise NotIntact(f"{name} cannot be read: {error.strerror}") from error
            if found != fact.num_bytes:
                raise NotIntact(f"{name} has {found} bytes instead of {fact.num_bytes}")

    def check_files(self, folder: Path) -> None:
        """Every file there, with its size and hash. Files that the manifest does not name are ignored."""
        self.check_sizes(folder)
        for name, fact in self.files.items():
            try:
                found = fact_of(folder / name)
            except OSError as error:
                raise NotIntact(f"{name} cannot be read: {error.strerror}") from error
            if found != fact:
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
