"""A folder as a store: killed writers, full, read-only and shared disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from god_ray.storage.leftovers import OLD_S, WRITER
from god_ray.storage.local import LocalStore
from god_ray.storage.store import UNFINISHED, open_store

BEFORE = b"before"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "runs")
    store.write("x", lambda path: path.write_bytes(BEFORE))
    return store


def write(store: LocalStore, name: str = "y") -> None:
    store.write(name, lambda path: path.write_bytes(b"new"))


def unfinished(store: LocalStore) -> list[str]:
    return sorted(os.listdir(store.root / UNFINISHED))


def test_a_killed_writer_leaves_nothing_that_shows_and_the_next_one_sweeps(store: LocalStore) -> None:
    program = (
        "import os, signal, sys\n"
        "from god_ray.storage.store import open_store\n"
        "def fill(path):\n"
        "    path.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "open_store(sys.argv[1]).write('x', fill)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, store.uri], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert store.list() == {"x": len(BEFORE)}
    assert store.read("x") == BEFORE
    [left] = unfinished(store)
    assert left.startswith(f"{WRITER}-")
    write(store)
    assert unfinished(store) == []


def test_what_a_living_writer_or_another_host_has_begun_stays_for_a_day(store: LocalStore) -> None:
    day_ago = time.time() - OLD_S - 1
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    names = [f"{WRITER}-{living.pid}-0", "other-host-4026531836-7-0", "no writer's"]
    for name in names:
        (store.root / UNFINISHED / name).write_text("half")
    write(store)
    assert unfinished(store) == sorted(names)
    for name in names:
        os.utime(store.root / UNFINISHED / name, (day_ago, day_ago))
    write(store)
    assert unfinished(store) == []
    living.communicate(b"\n")


def test_remove_takes_empty_folders_along_and_keeps_the_root(store: LocalStore) -> None:
    write(store, "a/b/c")
    write(store, "a/d")
    store.remove("a/b/c")
    assert sorted(os.listdir(store.root / "a")) == ["d"]
    store.remove("a/d")
    store.remove("x")
    assert os.listdir(store.root) == [UNFINISHED]


def test_nothing_goes_through_the_temporary_folder(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/proc/nowhere")
    monkeypatch.setattr("tempfile.tempdir", None)
    write(store)
    assert store.read("y") == b"new"


def test_a_quota_that_is_used_up_says_what_was_written(store: LocalStore) -> None:
    def over_quota(path: Path) -> None:
        path.write_bytes(b"12345")
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))

    with pytest.raises(OSError) as caught:
        store.write("x", over_quota)
    assert caught.value.errno == errno.EDQUOT
    assert f"{store.uri}: write of x: {os.strerror(errno.EDQUOT)}" in str(caught.value)
    assert "; 5 bytes of it were written, " in str(caught.value)
    assert store.read("x") == BEFORE
    assert unfinished(store) == []


SMALL_DISK = """\
import os, subprocess, sys
from pathlib import Path
from god_ray.storage.store import open_store

root = Path(sys.argv[1])
root.mkdir()
mount = lambda *options: subprocess.run(["mount", *options, str(root)], check=True, capture_output=True)
try:
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs")
except (OSError, subprocess.CalledProcessError):
    sys.exit(77)
store = open_store(str(root))
store.write("checkpoint", lambda path: path.write_bytes(b"1" * 600_000))


def refused(name, size):
    try:
        store.write(name, lambda path: path.write_bytes(b"2" * size))
    except OSError as error:
        print(error.errno, error.strerror)
    assert store.list() == {"checkpoint": 600_000}
    assert store.read("checkpoint") == b"1" * 600_000


refused("checkpoint", 600_000)
refused("next", 600_000)
assert os.listdir(root / ".unfinished") == []
mount("-o", "remount,ro")
refused("checkpoint", 1)
"""


def test_room_for_one_and_a_half_checkpoints_and_a_disk_that_turns_read_only(tmp_path: Path) -> None:
    root = tmp_path / "small"
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own_mounts, "true"], capture_output=True).returncode:
        own_mounts = ["unshare", "--mount"]
    done = subprocess.run(
        [*own_mounts, sys.executable, "-c", SMALL_DISK, str(root)], capture_output=True, text=True, timeout=60
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("a disk of 1 MB cannot be mounted here")
    assert done.returncode == 0, done.stderr
    full, new, read_only = done.stdout.splitlines()
    for line, name in ((full, "checkpoint"), (new, "next")):
        assert line.startswith(f"{errno.ENOSPC} {root}: write of {name}: {os.strerror(errno.ENOSPC)}; ")
        assert line.endswith(" bytes of it were written, 0 bytes are free")
    assert read_only.startswith(f"{errno.EROFS} {root}: write of checkpoint: {os.strerror(errno.EROFS)} (")


def test_a_place_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    store = LocalStore(file)
    with pytest.raises(OSError, match=f"{file}: write of y: "):
        write(store)
    with pytest.raises(FileNotFoundError, match=f"{file}: read of y: there is no such object"):
        store.read("y")
    assert store.list() == {}


def test_places_of_the_local_file_system(tmp_path: Path) -> None:
    folder = tmp_path / "100% there"
    for place in (str(folder), f"file://{tmp_path}/100%25%20there", f"file:{tmp_path}/100%25%20there"):
        assert open_store(place).uri == str(folder)


def test_a_root_behind_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    write(LocalStore(tmp_path / "runs"), "a/y")
    assert LocalStore(tmp_path / "disk").list() == LocalStore(tmp_path / "runs").list() == {"a/y": 3}


def test_what_others_left_under_no_name_of_ours_is_not_listed(store: LocalStore) -> None:
    """Whoever got such a name could not read or remove it."""
    (store.root / "a\\b").write_text("")
    (store.root / "c\\d").mkdir()
    (store.root / "c\\d" / "e").write_text("")
    assert store.list() == {"x": len(BEFORE)}
