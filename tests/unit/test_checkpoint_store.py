"""Checkpoints on disk: what is written is what is read; the right ones are kept, chosen and removed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import make, train

from god_ray.checkpoint.manifest import Manifest
from god_ray.checkpoint.state import Snapshot, capture, digest, restore
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import Bug, CheckpointError
from god_ray.storage.local import LocalStore


def snapshot_of(step: int) -> Snapshot:
    """Small, and different for each step."""
    scalars: dict[str, Any] = {
        "optimizer": {"class": "SGD", "groups": [], "state": {}},
        "extra": {"step": step},
    }
    return Snapshot({"w": torch.full((3,), float(step))}, {"w::momentum": torch.zeros(3)}, scalars)


def save(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        store.write(step, snapshot_of(step), {"step": step})


@pytest.mark.parametrize("optimizer", ["sgd", "fused", "groups", "tensor lr"])
def test_a_state_survives_the_disk(tmp_path: Path, optimizer: str) -> None:
    first, second = make(optimizer, "warm-up + cosine"), make(optimizer, "warm-up + cosine", seed=1)
    first.extra = {"cursor": (1, 2, 300), "best": math.inf, 3: None}  # type: ignore[dict-item]
    train(first, 3)
    said = digest(first.model, first.optimizer)
    store = CheckpointStore(LocalStore(tmp_path / "checkpoints"), attempt=1)
    path = store.write(300, capture(first), {"digest": said, "eval": {"accuracy": 0.5, "loss": math.nan}})
    assert path == tmp_path / "checkpoints" / "step-00000300"
    found = store.newest_intact()
    assert found is not None
    assert (found.step, found.skipped) == (300, [])
    assert found.meta["digest"] == said
    assert math.isnan(found.meta["eval"]["loss"])
    assert store.meta(300).keys() == found.meta.keys()
    restore(found.snapshot, second)
    assert digest(second.model, second.optimizer) == said
    assert second.extra == first.extra
    assert train(first, 5, seed=3) == train(second, 5, seed=3)
    assert digest(second.model, second.optimizer) == digest(first.model, first.optimizer)


def test_what_lies_on_disk(tmp_path: Path) -> None:
    """Names, sizes and hashes of all files in the manifest; no pickle; strict JSON even with a NaN."""
    store = CheckpointStore(LocalStore(tmp_path), attempt=4, run="r1")
    path = store.write(7, snapshot_of(7), {"loss": math.nan})
    assert sorted(os.listdir(path)) == [
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    envelope = json.loads((path / "manifest.json").read_text(), parse_constant=no_constant)
    content = envelope["content"]
    assert (envelope["format"], content["step"], content["attempt"], content["run"]) == (1, 7, 4, "r1")
    assert content["digest"] == snapshot_of(7).digest()
    for name, fact in content["files"].items():
        assert (path / name).stat().st_size == fact["num_bytes"]
        assert len(fact["xxh3_128"]) == 32
        assert not zipfile.is_zipfile(path / name)
        assert (path / name).read_bytes()[:1] != b"\x80"
    assert oct((path / "model.safetensors").stat().st_mode & 0o444) == oct(0o444 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_listing_needs_no_torch(tmp_path: Path) -> None:
    save(CheckpointStore(LocalStore(tmp_path), 1), 3)
    code = (
        "import sys; from pathlib import Path; from god_ray.checkpoint.store import CheckpointStore as S; "
        f"s = S(Path({str(tmp_path)!r}), 1); print(s.steps(), s.meta(3), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[3] {'step': 3} False\n"


def test_numbers_sort_as_numbers(tmp_path: Path) -> None:
    store = CheckpointStore(LocalStore(tmp_path), 1)
    save(store, 99_999_999, 5, 100_000_000)
    assert store.steps() == [5, 99_999_999, 100_000_000]
    found = store.newest_intact()
    assert found is not None
    assert found.step == 100_000_000
    assert store.prune(1, set()) == [5, 99_999_999]


def test_a_missing_or_empty_folder_is_a_fresh_start(tmp_path: Path) -> None:
    for root in (tmp_path / "none", tmp_path):
        store = CheckpointStore(LocalStore(root), 1)
        assert store.newest_intact() is None
        assert (store.steps(), store.verify(), store.prune(1, set())) == ([], [], [])


def test_a_digest_of_another_moment_is_our_bug(tmp_path: Path) -> None:
    with pytest.raises(Bug, match="not taken at the same moment"):
        CheckpointStore(LocalStore(tmp_path), 1).write(1, snapshot_of(1), {"digest": "0" * 32})
    assert os.listdir(tmp_path) == []


def test_writing_the_same_again_keeps_it_and_another_replaces_it(tmp_path: Path) -> None:
    store = CheckpointStore(LocalStore(tmp_path), 1)
    save(store, 4)
    before = (store.path(4) / Manifest.NAME).read_bytes()
    save(CheckpointStore(LocalStore(tmp_path), 2), 4)
    assert (store.path(4) / Manifest.NAME).read_bytes() == before
    CheckpointStore(LocalStore(tmp_path), 2).write(4, snapshot_of(44), {})
    assert store.load(4)[0].digest() == snapshot_of(44).digest()
    (store.path(4) / "state.json").write_text("{}")
    save(CheckpointStore(LocalStore(tmp_path), 3), 4)
    assert store.load(4)[0].digest() == snapshot_of(4).digest()
    assert os.listdir(tmp_path) == ["step-00000004"]


# ---- retention


def test_prune_keeps_the_newest_and_the_protected(tmp_path: Path) -> None:
    store = CheckpointStore(LocalStore(tmp_path), 1)
    save(store, 10, 20, 30, 40, 50)
    assert store.prune(2, {20, 999}) == [10, 30]
    assert store.steps() == [20, 40, 50]
    assert store.prune(2, {20}) == []


def test_prune_must_keep_one(tmp_path: Path) -> None:
    with pytest.raises(Bug):
        CheckpointStore(LocalStore(tmp_path), 1).prune(0, set())


def test_a_damaged_one_does_not_count_as_kept(tmp_path: Path) -> None:
    store = CheckpointStore(LocalStore(tmp_path), 1)
    save(store, 10, 20, 30, 40)
    os.truncate(store.path(40) / "model.safetensors", 9)
    (store.path(10) / "state.json").unlink()
    assert store.prune(2, set()) == [10]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000020", "step-00000030", "step-00000040"]


def test_already_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else removes one between the listing and the removal (case 4.06)."""
    store = CheckpointStore(LocalStore(tmp_path), 1)
    save(store, 1, 2, 3)
    rename = os.rename

    def gone(source: Path, target: Path) -> None:
        if Path(source).name == "step-00000001":
            raise FileNotFoundError(source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", gone)
    assert store.prune(1, set()) == [2]


def test_own_leftovers_are_swept_and_others_are_let_be(tmp_path: Path) -> None:
    store = CheckpointStore(LocalStore(tmp_path), attempt=3)
    own = ["step-00000005.3.tmp", "step-00000004.2.tmp", "step-00000003.1.old.tmp"]
    others = ["step-00000009.4.tmp", "notes.tmp", "step-9.tmp", "lost+found"]
    for name in own + others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    assert store.newest_intact() is None
    assert store.steps() == []
    save(store, 6)
    store.prune(1, set())
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "step-00000006"])


def test_a_foreign_checkpoint_is_neither_chosen_counted_nor_removed(tmp_path: Path) -> None:
    """Case 4.05: step 5000 of another run lies in the folder."""
    save(CheckpointStore(LocalStore(tmp_path), 1, run="other"), 50, 5000)
    store = CheckpointStore(LocalStore(tmp_path), 1, run="mine")
    for step in (100, 200, 300):
        save(store, step)
        assert store.prune(1, set()) == [step - 100] * (step > 100)
    assert store.steps() == [300]
    found = store.newest_intact()
    assert found is not None
    assert found.step == 300
    assert found.skipped == ["step-00005000: belongs to another run (other)"]
    assert sorted(os.listdir(tmp_path)) == ["step-00000050", "step-00000300", "step-00005000"]


def test_only_foreign_ones_are_no_silent_fresh_start(tmp_path: Path) -> None:
    save(CheckpointStore(LocalStore(tmp_path), 1, run="other"), 50)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        CheckpointStore(LocalStore(tmp_path), 1, run="mine").newest_intact()


def test_what_was_just_saved_is_kept_even_behind_higher_numbers(tmp_path: Path) -> None:
    save(CheckpointStore(LocalStore(tmp_path), 1), 5000)
    store = CheckpointStore(LocalStore(tmp_path), 2)
    save(store, 100)
    assert store.prune(1, set()) == []
    save(store, 200)
    assert store.prune(1, set()) == [100]
    assert store.steps() == [200, 5000]


def test_a_moved_folder_is_read_from_its_new_place(tmp_path: Path) -> None:
    save(CheckpointStore(LocalStore(tmp_path / "a"), 1, run="r"), 1)
    (tmp_path / "a").rename(tmp_path / "b %20 ü")
    found = CheckpointStore(LocalStore(tmp_path / "b %20 ü"), 2, run="r").newest_intact()
    assert found is not None
    assert found.step == 1
