"""Real damage: the newest intact checkpoint is used, others are named with their fault (cases 4.01, 4.02)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
import torch
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_checkpoint_store import save, snapshot_of

from god_ray.checkpoint.manifest import Manifest, fact_of
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import CheckpointError
from god_ray.storage.local import LocalStore
from god_ray.storage.store import Store, open_store


def truncate(name: str, keep: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path / name, int((path / name).stat().st_size * keep))


def flip(name: str, where: float) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        content = bytearray((path / name).read_bytes())
        content[int((len(content) - 1) * where)] ^= 1
        (path / name).write_bytes(content)

    return act


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def from_another(name: str) -> Callable[[Path], None]:
    """A file of the checkpoint before: sound in itself, and of the right size."""

    def act(path: Path) -> None:
        shutil.copy(path.parent / "step-00000010" / name, path / name)

    return act


def renamed(path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(path.parent / "step-00000010", path)


def in_its_place_a_folder(path: Path) -> None:
    (path / MODEL).unlink()
    (path / MODEL).mkdir()


def strangers(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()
    (path / "copy of model.safetensors").write_bytes(b"")


MODEL, OPTIMIZER, STATE = "model-1of1.1.safetensors", "optimizer-1of1.1.safetensors", "state.1.json"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "tensors cut": (truncate(MODEL, 0.5), f"{MODEL} has 38 bytes instead of 76"),
    "tensors emptied": (truncate(OPTIMIZER, 0), f"{OPTIMIZER} has 0 bytes"),
    "a flipped bit in a tensor": (flip(MODEL, 1), f"content of {MODEL} was altered"),
    "a flipped bit in a header": (flip(OPTIMIZER, 0.1), f"content of {OPTIMIZER}"),
    "a flipped bit in the scalars": (flip(STATE, 0.5), f"content of {STATE} was altered"),
    "no tensors": (remove(MODEL), f"{MODEL} is missing"),
    "no optimizer": (remove(OPTIMIZER), f"{OPTIMIZER} is missing"),
    "no scalars": (remove(STATE), f"{STATE} is missing"),
    "no manifest": (remove("manifest.json"), "manifest.json is missing"),
    "an empty manifest": (truncate("manifest.json", 0), "manifest.json is no manifest (0 bytes)"),
    "half a manifest": (truncate("manifest.json", 0.5), "manifest.json is no manifest"),
    "a flipped bit in the manifest": (flip("manifest.json", 0.5), "manifest.json"),
    "a file of another": (from_another(MODEL), f"content of {MODEL} was altered"),
    "all of another": (renamed, "named for step 20, its manifest says 10"),
    "a folder for a file": (in_its_place_a_folder, MODEL),
    "files only that nobody wrote": (strangers, "manifest.json is missing"),
}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    made = CheckpointStore(LocalStore(tmp_path), 1)
    save(made, 10, 20)
    return made


def folder(store: CheckpointStore, step: int) -> Path:
    return Path(store.place(step))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_is_passed_over_by_name(store: CheckpointStore, kind: str) -> None:
    damage, fault = DAMAGE[kind]
    damage(folder(store, 20))
    found = store.newest_intact()
    assert found is not None
    assert found.step == 10
    assert found.snapshot.digest() == snapshot_of(10).digest()
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("step-00000020: ")
    assert fault in found.skipped[0]
    unfinished = "a save that was not finished" in found.skipped[0]
    problems = [f"step-{step:08d}: {text}" for step, text in store.verify().items()]
    assert problems == ([] if unfinished else found.skipped)
    with pytest.raises(CheckpointError, match="step-00000020") as caught:
        store.load(20)
    assert fault in caught.value.why


@pytest.mark.parametrize("kind", DAMAGE)
def test_none_left_is_an_error_never_a_fresh_start(store: CheckpointStore, kind: str) -> None:
    damage, _ = DAMAGE[kind]
    damage(folder(store, 20))
    os.truncate(folder(store, 10) / STATE, 1)
    with pytest.raises(CheckpointError, match="no intact checkpoint is left") as caught:
        store.newest_intact()
    assert "step-00000010: " in caught.value.why
    assert "step-00000020: " in caught.value.why


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    name=st.sampled_from([MODEL, OPTIMIZER, STATE, "manifest.json"]),
    data=st.data(),
)
def test_any_flipped_bit_is_found(store: CheckpointStore, name: str, data: st.DataObject) -> None:
    path = folder(store, 20) / name
    sound = path.read_bytes()
    index, bit = data.draw(st.integers(0, len(sound) - 1)), data.draw(st.integers(0, 7))
    broken = bytearray(sound)
    broken[index] ^= 1 << bit
    path.write_bytes(broken)
    try:
        if name == "manifest.json" and _same_json(sound, bytes(broken)):
            return  # white space between values: the manifest says the same
        with pytest.raises(CheckpointError):
            store.load(20)
    finally:
        path.write_bytes(sound)


def _same_json(left: bytes, right: bytes) -> bool:
    try:
        return bool(json.loads(left) == json.loads(right))
    except ValueError:
        return False


def test_stray_things_are_not_checkpoints(store: CheckpointStore) -> None:
    root = folder(store, 20).parent
    (root / "latest").write_text("step-00000099")
    (root / "latest_checkpoint").write_text("")
    (root / "step-00000099").write_text("a file")
    (root / "step-00000096").mkdir()
    shutil.copytree(folder(store, 20), root / "step-99")
    shutil.copytree(folder(store, 20), root / "step-00000098.bak")
    shutil.copytree(folder(store, 20), root / "step-00000095.1.tmp")
    (folder(store, 20) / f"{MODEL}.tmp").write_bytes(b"half")
    (folder(store, 20) / ".DS_Store").write_bytes(b"\0")
    (root / "step-00000097").symlink_to(root / "nowhere")
    found = store.newest_intact()
    assert found is not None
    assert (found.step, found.skipped) == (20, [])
    assert store.steps() == [10, 20]
    assert store.verify() == {}


def test_a_folder_of_another_number_counts_for_nothing(store: CheckpointStore) -> None:
    """A copy under another name, and digits that are no ASCII ones: a path that nobody could open."""
    root = Path(store.store.uri)
    newest = store.steps()[-1]
    shutil.copytree(root / f"step-{newest:08d}", root / "step-00000500")
    (root / "step-٣٣٣٣٣٣٣٣").mkdir()
    shutil.copy(root / f"step-{newest:08d}" / "manifest.json", root / "step-٣٣٣٣٣٣٣٣")
    assert store.steps()[-1] == newest
    assert store.verify() == {500: f"the folder is named for step 500, its manifest says {newest}"}
    found = store.newest_intact()
    assert found is not None
    assert found.step == newest
    store.prune(1, set())
    assert store.steps() == [newest]


def test_another_format_is_refused_by_name_and_nothing_behind_it_is_used(store: CheckpointStore) -> None:
    """A newer god_ray wrote it: to resume behind it would fork the run."""
    path = folder(store, 20) / Manifest.NAME
    envelope = json.loads(path.read_text())
    envelope["format"] = 3
    content = json.dumps(envelope["content"], sort_keys=True, separators=(",", ":"))
    envelope["xxh3_128"] = xxhash.xxh3_128_hexdigest(f"3\n{content}".encode())
    path.write_text(json.dumps(envelope))
    for read in (lambda: store.load(20), store.newest_intact, lambda: store.meta(20)):
        with pytest.raises(CheckpointError, match=r"(?s)step-00000020.*format 3; .* reads formats 1 and 2"):
            read()
    assert store.steps() == [10]
    assert len(store.verify()) == 1
    save(store, 30, 40)
    assert store.prune(1, set()) == [10, 30]
    assert folder(store, 20).is_dir()


def test_a_manifest_that_matches_its_files_but_not_the_state_is_found(store: CheckpointStore) -> None:
    """The last net: tensors exchanged and all hashes made to fit, except the digest."""
    path = folder(store, 20)
    save_file({"w": torch.zeros(3)}, path / MODEL)
    manifest = Manifest.parse((path / Manifest.NAME).read_bytes())
    manifest.files[MODEL] = fact_of(path / MODEL)
    (path / Manifest.NAME).write_text(manifest.text())
    with pytest.raises(CheckpointError, match="its digest is"):
        store.load(20)


def test_unreadable_is_named(tmp_path: Path, store: CheckpointStore) -> None:
    """An I/O error of the disk: of one file, it is damage; of the whole place, an error."""

    class Failing(LocalStore):
        @contextmanager
        def fetch(self, name: str) -> Iterator[Path]:
            if name.startswith("step-00000020/optimizer"):
                raise OSError(5, "Input/output error", name)
            with super().fetch(name) as path:
                yield path

    failing = CheckpointStore(Failing(tmp_path), 2)
    with pytest.raises(CheckpointError, match="Input/output error"):
        failing.load(20)
    found = failing.newest_intact()
    assert found is not None
    assert (found.step, len(found.skipped)) == (10, 1)
    assert found.skipped[0].startswith(f"step-00000020: {OPTIMIZER} cannot be read")


def test_a_store_that_does_not_answer_does_not_send_a_run_back(s3: str) -> None:
    """Its newest checkpoint may be intact: nothing is passed over, nothing started anew."""
    save(CheckpointStore(open_store(s3), 1), 10, 20)

    class Failing:
        def __init__(self, inner: Store) -> None:
            self.inner, self.uri, self.list = inner, inner.uri, inner.list

        def read(self, name: str) -> bytes:
            if name.startswith("step-00000020/"):
                raise OSError("503 Slow Down")
            return self.inner.read(name)

    with pytest.raises(CheckpointError, match="503 Slow Down"):
        CheckpointStore(cast("Store", Failing(open_store(s3))), 2).newest_intact()


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../model.safetensors": {"num_bytes": 1, "xxh3_128": ""}}},
        {"files": {"share-1of1.1.json": {"num_bytes": 1, "xxh3_128": ""}}},
        {"files": []},
        {"files": {"state.1.json": {}}},
        {"more": 1},
    ],
)
def test_a_manifest_that_is_sound_in_itself_and_names_something_else(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """Its own hash is right: somebody made it. What it names is never looked for outside."""
    store = CheckpointStore(LocalStore(tmp_path), 1)
    save(store, 10, 20)
    path = tmp_path / "step-00000020" / Manifest.NAME
    envelope = json.loads(path.read_bytes())
    envelope["content"] |= change
    canonical = json.dumps(envelope["content"], sort_keys=True, separators=(",", ":"))
    sealed = f"{envelope['format']}\n{canonical}".encode()
    path.write_text(json.dumps(envelope | {"xxh3_128": xxhash.xxh3_128_hexdigest(sealed)}))
    found = store.newest_intact()
    assert found is not None
    assert (found.step, len(found.skipped)) == (10, 1)
    assert found.skipped[0].startswith("step-00000020: ")
