"""Real damage: the newest intact checkpoint is used, others are named with their fault (cases 4.01, 4.02)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_checkpoint_store import save, snapshot_of

from god_ray.checkpoint.manifest import Manifest
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import CheckpointError
from god_ray.storage.local import LocalStore


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
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "tensors cut": (truncate("model.safetensors", 0.5), "model.safetensors has 38 bytes instead of 76"),
    "tensors emptied": (truncate("optimizer.safetensors", 0), "optimizer.safetensors has 0 bytes"),
    "a flipped bit in a tensor": (flip("model.safetensors", 1), "content of model.safetensors was altered"),
    "a flipped bit in a header": (flip("optimizer.safetensors", 0.1), "content of optimizer.safetensors"),
    "a flipped bit in the scalars": (flip("state.json", 0.5), "content of state.json was altered"),
    "no tensors": (remove("model.safetensors"), "model.safetensors cannot be read: No such file"),
    "no optimizer": (remove("optimizer.safetensors"), "optimizer.safetensors cannot be read"),
    "no scalars": (remove("state.json"), "state.json cannot be read"),
    "no manifest": (remove("manifest.json"), "manifest.json is missing"),
    "an empty manifest": (truncate("manifest.json", 0), "manifest.json is no manifest (0 characters)"),
    "half a manifest": (truncate("manifest.json", 0.5), "manifest.json is no manifest"),
    "a flipped bit in the manifest": (flip("manifest.json", 0.5), "manifest.json"),
    "a file of another": (from_another("model.safetensors"), "content of model.safetensors was altered"),
    "all of another": (renamed, "named for step 20, its manifest says 10"),
    "a folder for a file": (in_its_place_a_folder, "model.safetensors"),
    "an empty folder": (lambda path: (shutil.rmtree(path), path.mkdir())[1], "manifest.json is missing"),
}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    made = CheckpointStore(LocalStore(tmp_path), 1)
    save(made, 10, 20)
    return made


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_is_passed_over_by_name(store: CheckpointStore, kind: str) -> None:
    damage, fault = DAMAGE[kind]
    damage(store.path(20))
    found = store.newest_intact()
    assert found is not None
    assert found.step == 10
    assert found.snapshot.digest() == snapshot_of(10).digest()
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("step-00000020: ")
    assert fault in found.skipped[0]
    assert store.verify() == found.skipped
    with pytest.raises(CheckpointError, match="step-00000020") as caught:
        store.load(20)
    assert fault in caught.value.why


@pytest.mark.parametrize("kind", DAMAGE)
def test_none_left_is_an_error_never_a_fresh_start(store: CheckpointStore, kind: str) -> None:
    damage, _ = DAMAGE[kind]
    damage(store.path(20))
    os.truncate(store.path(10) / "state.json", 1)
    with pytest.raises(CheckpointError, match="no intact checkpoint is left") as caught:
        store.newest_intact()
    assert "step-00000010: " in caught.value.why
    assert "step-00000020: " in caught.value.why


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]),
    data=st.data(),
)
def test_any_flipped_bit_is_found(store: CheckpointStore, name: str, data: st.DataObject) -> None:
    path = store.path(20) / name
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
    (store.root / "latest").write_text("step-00000099")
    (store.root / "step-00000099").write_text("a file")
    (store.root / "step-99").mkdir()
    (store.root / "step-00000098.bak").mkdir()
    (store.path(20) / ".DS_Store").write_bytes(b"\0")
    (store.root / "step-00000097").symlink_to(store.root / "nowhere")
    found = store.newest_intact()
    assert found is not None
    assert (found.step, found.skipped) == (20, [])
    assert store.steps() == [10, 20]
    assert store.verify() == []


def test_another_format_is_refused_by_name_and_nothing_behind_it_is_used(store: CheckpointStore) -> None:
    """A newer god_ray wrote it: to resume behind it would fork the run."""
    path = store.path(20) / Manifest.NAME
    envelope = json.loads(path.read_text())
    envelope["format"] = 2
    content = json.dumps(envelope["content"], sort_keys=True, separators=(",", ":"))
    envelope["xxh3_128"] = xxhash.xxh3_128_hexdigest(f"2\n{content}".encode())
    path.write_text(json.dumps(envelope))
    for read in (lambda: store.load(20), store.newest_intact, lambda: store.meta(20)):
        with pytest.raises(CheckpointError, match=r"(?s)step-00000020.*format 2; .* reads format 1"):
            read()
    assert store.steps() == [10]
    assert len(store.verify()) == 1
    save(store, 30, 40)
    assert store.prune(1, set()) == [10, 30]
    assert store.path(20).is_dir()


def test_a_manifest_that_matches_its_files_but_not_the_state_is_found(store: CheckpointStore) -> None:
    """The last net: tensors exchanged and all hashes made to fit, except the digest."""
    path = store.path(20)
    save_file({"w": torch.zeros(3)}, path / "model.safetensors")
    manifest = Manifest.read(path)
    from god_ray.checkpoint.manifest import fact_of

    manifest.files["model.safetensors"] = fact_of(path / "model.safetensors")
    manifest.write(path)
    with pytest.raises(CheckpointError, match="its digest is"):
        store.load(20)


def test_unreadable_is_named(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error of the disk while reading."""
    import god_ray.checkpoint.manifest as module

    def broken(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(module, "fact_of", broken)
    with pytest.raises(CheckpointError, match="Input/output error"):
        store.load(20)
