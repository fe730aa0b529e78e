"""A bucket, or any place that pyarrow.fs opens by URI, as a `Store`.

In: a URI. Out: the five verbs. An object of such a store appears when its upload is complete. What passes is
tried again (`connection`); what stays is an OSError that says how often it was tried. Must not know what
objects mean.
"""

from __future__ import annotations

import ctypes
import errno
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pyarrow import fs

from god_ray.storage.connection import Connection
from god_ray.storage.filesystem import Opened, without_secrets
from god_ray.storage.named import named
from god_ray.storage.store import check_name
from god_ray.storage.tries import LeftBehind, Patience, Pulse, watched

T = TypeVar("T")
CHUNK_BYTES = 32 << 20
"""In memory at a time; pyarrow sends it in parts, several at once."""


class RemoteStore:
    def __init__(self, place: str, patience: Patience = Patience()) -> None:  # noqa: B008 - frozen
        self.uri = without_secrets(place)
        self._connection = Connection(place, patience)

    @property
    def num_retries(self) -> int:
        """Over all verbs."""
        return self._connection.num_retries

    def write(self, name: str, fill: Callable[[Path], object]) -> None:
        check_name(name)
        with self._scratch("write", name) as work:
            with named(f"{self.uri}: write of {name}", work):
                fill(work)
                work.stat()
            self._try("write", name, lambda opened, pulse: _upload(work, opened, name, pulse))

    def read(self, name: str) -> bytes:
        check_name(name)
        return self._try("read", name, lambda opened, pulse: b"".join(_download(opened, name, pulse)))

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path]:
        check_name(name)
        with self._scratch("fetch", name) as work:
            self._try("fetch", name, lambda opened, pulse: _save(work, opened, name, pulse))
            yield work

    def list(self, prefix: str = "") -> dict[str, int]:
        check_name(prefix, empty=True)
        return self._try("list", prefix or "all", lambda opened, pulse: _list(opened, prefix))

    def remove(self, name: str) -> None:
        check_name(name)
        self._try("remove", name, lambda opened, pulse: _remove(opened, name))

    @contextmanager
    def _scratch(self, verb: str, name: str) -> Iterator[Path]:
        """A file of this machine for the time of a verb."""
        with named(f"{self.uri}: {verb} of {name}: temporary folder"):
            folder = tempfile.TemporaryDirectory(prefix="god_ray-")
        with folder as path:
            yield Path(path, "object")

    def _try(self, verb: str, name: str, once: Callable[[Opened, Pulse], T]) -> T:
        doing, connection = f"{self.uri}: {verb} of {name}", self._connection

        def try_once() -> T:
            return watched(lambda pulse: once(connection.opened(), pulse), connection.patience.silence_s)

        with named(doing):
            try:
                return connection.tried(doing, try_once)
            except FileNotFoundError as error:
                raise FileNotFoundError(errno.ENOENT, "there is no such object") from error


def _upload(work: Path, opened: Opened, name: str, pulse: Pulse) -> None:
    path, sent_bytes = f"{opened.root}/{name}", 0
    with work.open("rb") as file:
        stream = opened.filesystem.open_output_stream(path)
        try:
            while chunk := file.read(CHUNK_BYTES):
                stream.write(chunk)
                stream.flush()
                sent_bytes += len(chunk)
                pulse.beat()
        except (OSError, LeftBehind) as error:
            _break_off(stream, error)
            raise
    stream.close()
    there = opened.filesystem.get_file_info(path)
    if there.size != sent_bytes:
        raise OSError(f"{sent_bytes:,} bytes were sent, and {there.size or 0:,} are there")


def _break_off(stream: Any, error: OSError | LeftBehind) -> None:
    """pyarrow makes an object of half an upload when its stream is closed or collected, unless a part of it
    failed. So it never is: a list would not do, because the end of the process collects it.
    """
    if isinstance(error, OSError) and error.errno is None:  # pyarrow's: a part failed
        with suppress(OSError):
            stream.close()
    else:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))


def _download(opened: Opened, name: str, pulse: Pulse) -> Iterator[bytes]:
    with opened.filesystem.open_input_file(f"{opened.root}/{name}") as file:
        missing = file.size()
        while chunk := file.read(CHUNK_BYTES):
            missing -= len(chunk)
            pulse.beat()
            yield chunk
    if missing:
        raise OSError(f"the answer is {missing:,} bytes short")


def _save(work: Path, opened: Opened, name: str, pulse: Pulse) -> None:
    with work.open("wb") as file:
        for chunk in _download(opened, name, pulse):
            with named(f"temporary file {work}", work):
                file.write(chunk)


def _list(opened: Opened, prefix: str) -> dict[str, int]:
    below = fs.FileSelector(f"{opened.root}/{prefix}", allow_not_found=True, recursive=True)
    files = (info for info in opened.filesystem.get_file_info(below) if info.type == fs.FileType.File)
    return dict(sorted((info.path[len(opened.root) + 1 :], info.size) for info in files))


def _remove(opened: Opened, name: str) -> None:
    """pyarrow leaves a marker of the folder that this may have emptied; `_list` shows none."""
    try:
        opened.filesystem.delete_file(f"{opened.root}/{name}")
    except FileNotFoundError:
        return
