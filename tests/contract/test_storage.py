"""What every store does, run on each implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from god_ray.storage.store import Store, open_store


@pytest.fixture(params=["folder", "file URI", "s3", "s3 by query"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, empty place of each kind."""
    if request.param == "folder":
        return str(tmp_path / "a folder")
    if request.param == "file URI":
        return f"file://{tmp_path}/a%20folder"
    bucket = request.getfixturevalue("s3")
    endpoint = request.getfixturevalue("s3_endpoint")
    return f"{bucket}/runs" + ("?" + endpoint.query if "query" in request.param else "")


@pytest.fixture
def store(place: str) -> Store:
    return open_store(place)


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def test_what_was_written_is_read(store: Store) -> None:
    store.write("a/b", content(b"one"))
    assert store.read("a/b") == b"one"
    assert store.list() == {"a/b": 3}
