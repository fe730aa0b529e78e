"""The store contract: five verbs on whole objects, and the door that opens a store by its place.

In: a path or a URI. Out: a `Store`. Must not know what objects mean. Every failure is an OSError whose text
names place, verb, object and cause; FileNotFoundError is kept for an object that is not there. A name that
could lead out of the store is a ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from god_ray.fileuri import plain

UNFINISHED = ".unfinished"
"""No part of a name: on a local disk, the folder of what is still being written."""


class Store(Protocol):
    """Objects by name below one root. A name is relative, its parts are divided by "/".

    Nothing torn is ever seen: an object is there whole or not at all. Safe to use from several threads and
    processes; two writers of one name leave one of their two objects.
    """

    uri: str
    """The root, for messages and for Ray: an absolute path, or a URI without credentials."""

    def write(self, name: str, fill: Callable[[Path], object]) -> None:
        """`fill` writes a file at the path that it is given; then that is `name`, durably. Replaces.

        If `fill` raises, `name` is what it was before. `fill` is called once, whatever is tried again.
        """
        ...

    def read(self, name: str) -> bytes:
        """The whole object. FileNotFoundError if there is none."""
        ...

    def fetch(self, name: str) -> AbstractContextManager[Path]:
        """The object as a local file while the context is open. FileNotFoundError if there is none."""
        ...

    def list(self, prefix: str = "") -> dict[str, int]:
        """Name -> bytes of every object below the folder `prefix`, at any depth, sorted by name.

        Empty if there is nothing. What is being written, or was left unfinished, is not listed, nor what
        others left whose name is none.
        """
        ...

    def remove(self, name: str) -> None:
        """Already gone is no error."""
        ...


def is_remote(place: str) -> bool:
    """Whether `place` is a URI of a store that is not this machine's file system."""
    return "://" in place and not place.startswith("file:")


def below(place: str, name: str) -> str:
    """The place of `name` inside `place`; the options of a URI stay where they are."""
    path, mark, options = place.partition("?") if is_remote(place) else (place, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


def above(place: str) -> tuple[str, str]:
    """The place around `place`, and the name of `place` in it: `below` turned round."""
    path, mark, options = place.partition("?") if is_remote(place) else (place, "", "")
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"{folder}{mark}{options}", name


def write_bytes(store: Store, name: str, content: bytes) -> None:
    """A small object."""
    store.write(name, lambda path: path.write_bytes(content))


def open_store(place: str) -> Store:
    """The store at an absolute path, a `file:///` URI or a URI that pyarrow.fs knows (s3, gs, abfs).

    Opening reads and writes nothing: what is wrong with the place shows in the first verb.
    """
    if is_remote(place):
        from god_ray.storage.remote import RemoteStore

        return RemoteStore(place)
    from god_ray.storage.local import LocalStore

    return LocalStore(Path(plain(place)))


def is_name(name: str) -> bool:
    return not ({"", ".", "..", UNFINISHED} & set(name.split("/")) or "\\" in name or "\0" in name)


def check_name(name: str, empty: bool = False) -> str:
    """`name` itself. ValueError if it is none; `empty`: whether "" may stand for the root."""
    if (empty and not name) or is_name(name):
        return name
    raise ValueError(f"{name!r} is no name of an object: it must stay below the root, with single slashes")
