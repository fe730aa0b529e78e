"""What every store does, run on each implementation."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from god_ray.storage.store import Store, below, open_store, write_bytes

ODD = ["with space", "50%", "%41", "ä/ü ß", "a+b&c=d?e#f", "-", "..a", "名前", "'quoted'", 'dir.d/"x"']
OUTSIDE = ["", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "./a", "a\\b", "a\0b", ".unfinished/x"]


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, empty place of each kind."""
    if request.param == "local":
        return str(tmp_path / "a folder")
    bucket: str = request.getfixturevalue("s3")
    return f"{bucket}/some runs"


@pytest.fixture
def store(place: str) -> Store:
    return open_store(place)


def test_what_was_written_is_read_and_listed_with_its_size(store: Store) -> None:
    write_bytes(store, "a/b", b"one")
    write_bytes(store, "a/empty", b"")
    assert (store.read("a/b"), store.read("a/empty")) == (b"one", b"")
    assert store.list() == {"a/b": 3, "a/empty": 0}
    with store.fetch("a/b") as path:
        assert path.read_bytes() == b"one"


def test_a_second_write_replaces(store: Store) -> None:
    write_bytes(store, "x", b"long before")
    write_bytes(store, "x", b"new")
    assert store.read("x") == b"new"
    assert store.list() == {"x": 3}


@pytest.mark.parametrize("name", ODD)
def test_names_are_taken_as_they_are(store: Store, name: str) -> None:
    write_bytes(store, name, name.encode())
    assert store.list() == {name: len(name.encode())}
    assert store.read(name) == name.encode()
    store.remove(name)
    assert store.list() == {}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_stays_below_the_root(store: Store, name: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for verb in (
        lambda: write_bytes(store, name, b""),
        lambda: store.read(name),
        lambda: store.remove(name),
    ):
        with pytest.raises(ValueError, match="no name of an object"):
            verb()
    with pytest.raises(ValueError), store.fetch(name):
        pass
    if name:
        with pytest.raises(ValueError):
            store.list(name)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_list_is_of_a_folder_at_any_depth_and_sorted(store: Store) -> None:
    for name in ("b", "a/2", "a/10", "a/d/e/f", "ab/c"):
        write_bytes(store, name, b"x")
    assert list(store.list()) == ["a/10", "a/2", "a/d/e/f", "ab/c", "b"]
    assert list(store.list("a")) == ["a/10", "a/2", "a/d/e/f"]
    assert list(store.list("a/d")) == ["a/d/e/f"]
    assert store.list("nothing") == store.list("a/1") == store.list("b") == {}


def test_what_is_not_there(store: Store) -> None:
    assert store.list() == {}
    store.remove("a/b")
    write_bytes(store, "a/b", b"x")
    for name in ("x", "a", "a/b/c", "a/c"):
        for verb in (store.read, lambda name: store.fetch(name).__enter__()):
            with pytest.raises(FileNotFoundError) as caught:
                verb(name)
            assert store.uri in str(caught.value)
            assert f"of {name}: there is no such object" in str(caught.value)
        store.remove(name)
    assert store.list() == {"a/b": 1}


def test_remove_leaves_the_others(store: Store) -> None:
    for name in ("a/b/c", "a/b/d", "e"):
        write_bytes(store, name, b"x")
    store.remove("a/b/c")
    assert list(store.list()) == ["a/b/d", "e"]
    store.remove("a/b/d")
    store.remove("a/b/d")
    assert list(store.list()) == ["e"]


def test_a_fill_that_fails_leaves_what_was_there(store: Store) -> None:
    write_bytes(store, "x", b"before")

    def half(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("the model is gone")

    for name in ("x", "y"):
        with pytest.raises(RuntimeError, match="the model is gone"):
            store.write(name, half)
    assert store.list() == {"x": 6}
    assert store.read("x") == b"before"


def test_a_disk_that_is_full_while_filling_is_named(store: Store) -> None:
    """/dev/full answers each write as a full disk does."""
    write_bytes(store, "x", b"before")

    def on_a_full_disk(path: Path) -> None:
        path.symlink_to("/dev/full")
        path.write_bytes(b"new")

    with pytest.raises(OSError) as caught:
        store.write("x", on_a_full_disk)
    assert os.strerror(28) in str(caught.value)
    assert f"{store.uri}: write of x" in str(caught.value)
    assert caught.value.errno == 28
    assert store.list() == {"x": 6}
    assert store.read("x") == b"before"


def test_large_objects_are_streamed(store: Store, tmp_path: Path) -> None:
    """Three chunks and many parts, with a beginning and an end of their own."""
    size = 70 << 20
    pattern = tmp_path / "large"
    with pattern.open("wb") as file:
        for block in range(size >> 20):
            file.write(block.to_bytes(4, "big") * (1 << 18))
    store.write("large", lambda path: shutil.copyfile(pattern, path))
    assert store.list() == {"large": size}
    with store.fetch("large") as path:
        assert path.stat().st_size == size
        assert path.read_bytes() == pattern.read_bytes()


def test_readers_see_one_of_two_writers_whole(store: Store) -> None:
    versions = [bytes([65 + n]) * 100_000 for n in range(2)]
    write_bytes(store, "x", versions[0])
    failures: list[BaseException] = []

    def again_and_again(version: bytes) -> None:
        try:
            for _ in range(10):
                write_bytes(store, "x", version)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=again_and_again, args=(version,)) for version in versions]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert store.read("x") in versions
        assert store.list() == {"x": 100_000}
    assert not failures


def test_writing_and_removing_neighbours_at_once(store: Store) -> None:
    """A folder that one empties is the one that another fills."""
    failures: list[BaseException] = []

    def come_and_go(name: str) -> None:
        try:
            for _ in range(10):
                write_bytes(store, name, b"x")
                store.remove(name)
            write_bytes(store, name, b"end")
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go, args=(f"deep/er/{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.list() == {f"deep/er/{n}": 3 for n in range(4)}


def test_a_place_below_another(place: str, store: Store) -> None:
    inner = open_store(below(place, "run-1"))
    write_bytes(inner, "x", b"1")
    assert store.list() == store.list("run-1") == {"run-1/x": 1}
    assert inner.list() == {"x": 1}
    assert inner.uri == f"{store.uri}/run-1"
