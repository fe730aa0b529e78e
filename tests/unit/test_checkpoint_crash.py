"""Saving that is killed, or runs out of room: the earlier checkpoints stay, and nothing half is seen."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from checkpoint_cases import make
from test_checkpoint_store import save, snapshot_of

from god_ray.checkpoint.share import Share
from god_ray.checkpoint.state import Snapshot
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import CheckpointError
from god_ray.storage.local import LocalStore

KILLS = int(os.environ.get("GOD_RAY_KILLS", "200"))


def weights_of(step: int) -> torch.Tensor:
    return torch.full((20_000,), float(step))


def large(step: int) -> Snapshot:
    small = snapshot_of(step)
    return Snapshot({"w": weights_of(step)}, {"w::m": weights_of(-step)}, small.scalars)


def in_child(act: Callable[[int], None]) -> tuple[int, int]:
    """Fork (starting an interpreter with torch takes seconds): (pid, pipe from `act`, which gets its end)."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    try:
        act(theirs)
    finally:
        os._exit(0)


def resume_and_save(root: Path, attempt: int, pipe: int) -> None:
    """A run without training: go on from the newest, save in two shares, say so, prune."""
    store = CheckpointStore(LocalStore(root), attempt)
    found = store.newest_intact()
    step = found.step if found else 0
    with ThreadPoolExecutor(1) as other_worker:
        while True:
            step += 1
            snapshot, saving = large(step), store.saving(step)
            ours, theirs = Snapshot(snapshot.model, {}, {}), Snapshot({}, snapshot.optimizer, {})
            other_worker.submit(saving.share, theirs, Share(1, 2))
            saving.share(ours, Share(0, 2))
            saving.finish(snapshot.scalars, {"digest": snapshot.digest()}, 2)
            store.written(step)
            os.write(pipe, f"{step} {snapshot.digest()}\n".encode())
            store.prune(2, {step - 5})


def test_killed_at_random_moments_of_saving(quick_disk: Path) -> None:
    """After each kill the newest intact one is no older than what had been reported durable, and the same."""
    moments, root = random.Random(20240607), quick_disk / "killed"
    newest, torn = 0, 0
    for attempt in range(1, KILLS + 1):
        pid, pipe = in_child(partial(resume_and_save, root, attempt))
        said = os.read(pipe, 100)  # it saves by now
        time.sleep(moments.uniform(0, 0.03))  # not to wait for something: the moment is the point
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        said += os.read(pipe, 100_000)
        os.close(pipe)
        durable = dict(line.split() for line in said.decode().splitlines())
        store = CheckpointStore(LocalStore(root), attempt)
        assert store.verify() == {}, f"kill {attempt}"
        found = store.newest_intact()
        assert found is not None
        assert all(text.endswith("(a save that was not finished)") for text in found.skipped), found.skipped
        assert found.step >= max(newest, *map(int, durable)), f"kill {attempt} lost a saved step"
        assert torch.equal(found.snapshot.model["w"], weights_of(found.step))
        assert found.snapshot.digest() == durable.get(str(found.step), large(found.step).digest())
        torn += bool(found.skipped)
        newest = found.step
    assert torn, "no kill fell into a save: the test is too slow to see anything"
    store = CheckpointStore(LocalStore(root), KILLS + 1)
    store.write(newest + 1, large(newest + 1), {})
    store.prune(2, set())
    assert store.steps() == [newest, newest + 1]
    assert len(store.store.list()) == 6 + 4, "something is left of the saves that were killed"


def test_killed_between_any_two_calls_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die before the n-th fsync or rename of a save, for every n."""
    for n in range(1, 40):
        root = tmp_path / str(n)
        save(CheckpointStore(LocalStore(root), 1), 1)

        def act(pipe: int, n: int = n, root: Path = root) -> None:
            calls = iter(range(1, 100))

            def dying(call: Callable[..., None]) -> Callable[..., None]:
                def wrapped(*arguments: object) -> None:
                    if next(calls) == n:
                        os.kill(os.getpid(), signal.SIGKILL)
                    call(*arguments)

                return wrapped

            monkeypatch.setattr(os, "fsync", dying(os.fsync))
            monkeypatch.setattr(Path, "replace", dying(Path.replace))
            save(CheckpointStore(LocalStore(root), 1), 2)
            os.write(pipe, b"done")

        pid, pipe = in_child(act)
        os.waitpid(pid, 0)
        survived = os.read(pipe, 10) == b"done"
        os.close(pipe)
        found = CheckpointStore(LocalStore(root), 2).newest_intact()
        assert found is not None
        assert all(text.startswith("step-00000002: manifest.json is missing") for text in found.skipped)
        assert found.step == 2 if survived else found.step in (1, 2)
        assert CheckpointStore(LocalStore(root), 2).verify() == {}
        if survived:
            break
    assert survived, "a save makes more calls than were tried"


# ---- no room


def big() -> Snapshot:
    return Snapshot({"w": torch.zeros(300_000)}, {}, snapshot_of(2).scalars)


def assert_refused(root: Path, said: str) -> None:
    store = CheckpointStore(LocalStore(root), 1)
    assert "needed about 1,200,000 bytes" in said
    assert "step-00000002" in said
    found = store.newest_intact()
    assert found is not None
    assert found.step == 1
    assert not (root / ".unfinished").exists() or os.listdir(root / ".unfinished") == []
    assert store.steps() == [1]


def test_a_file_size_limit_leaves_the_previous_one(tmp_path: Path) -> None:
    """As a quota does: writing fails although the disk has room."""
    store = CheckpointStore(LocalStore(tmp_path), 1)
    save(store, 1)

    def act(pipe: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        try:
            store.write(2, big(), {})
        except CheckpointError as error:
            os.write(pipe, str(error).encode())

    pid, pipe = in_child(act)
    said = os.read(pipe, 10_000).decode()
    os.close(pipe)
    os.waitpid(pid, 0)
    assert "File too large" in said
    assert_refused(tmp_path, said)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = shutil.which("mount")
    place = tmp_path / "disk"
    place.mkdir()
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk: a full disk was not tried (the file size limit was)")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting is not allowed here: a full disk was not tried (the file size limit was)")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_the_previous_one(small_disk: Path) -> None:
    """Case 4.10: what was needed and what is free is said, and saving works again when there is room."""
    root = small_disk / "checkpoints"
    store = CheckpointStore(LocalStore(root), 1)
    save(store, 1)
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        store.write(2, big(), {})
    assert_refused(root, str(caught.value))
    assert caught.value.exit_code == 100
    save(store, 3)
    assert store.steps() == [1, 3]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="checkpoints/step-00000001 could not be written"):
        save(CheckpointStore(LocalStore(tmp_path / "checkpoints"), 1), 1)


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of it."""
    store = CheckpointStore(LocalStore(tmp_path), 1)
    save(store, 1)

    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(store, 2)
    assert sorted(os.listdir(tmp_path)) == [".unfinished", "step-00000001"]
    assert os.listdir(tmp_path / ".unfinished") == []


def test_a_snapshot_is_written_while_training_goes_on(tmp_path: Path) -> None:
    """The writer may be another thread: the snapshot does not move under it."""
    from checkpoint_cases import train

    from god_ray.checkpoint.state import capture

    state = make("fused")
    store = CheckpointStore(LocalStore(tmp_path), 1)
    with ThreadPoolExecutor(1) as thread:
        for step in range(1, 6):
            train(state, 1, seed=step)
            snapshot = capture(state)
            saved = thread.submit(store.write, step, snapshot, {"digest": snapshot.digest()})
            train(state, 3, seed=50 + step)
            saved.result()
    assert store.verify() == {}
    assert store.steps() == [1, 2, 3, 4, 5]
