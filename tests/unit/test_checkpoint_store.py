"""Checkpoints in a store: what is written is what is read; the right ones are kept, chosen and removed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import make, train

from god_ray.checkpoint.share import Share
from god_ray.checkpoint.state import Snapshot, capture, digest, restore, view
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import Bug, CheckpointError
from god_ray.storage.local import LocalStore
from god_ray.storage.store import open_store, write_bytes

DATA = Path(__file__).parents[1] / "data"
At = Callable[..., CheckpointStore]
"""`at(attempt, run="")`: the same new place in each test, seen by an attempt of a run."""


@pytest.fixture(params=["folder", "s3"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> At:
    s3 = request.getfixturevalue("s3") if request.param == "s3" else None
    place = f"{s3}/run/checkpoints" if s3 else str(tmp_path / "checkpoints")
    return lambda attempt, run="": CheckpointStore(open_store(place), attempt, run)


def snapshot_of(step: int) -> Snapshot:
    """Small, and different for each step."""
    scalars: dict[str, Any] = {
        "parameters": [["w", "float32", [3], True]],
        "optimizer": {"class": "SGD", "groups": [], "state": {}},
        "extra": {"step": step},
    }
    return Snapshot({"w": torch.full((3,), float(step))}, {"w::momentum": torch.zeros(3)}, scalars)


def save(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        store.write(step, snapshot_of(step), {"step": step})


def names(store: CheckpointStore) -> list[str]:
    return list(store.store.list())


def folders(store: CheckpointStore) -> list[str]:
    return sorted({name.partition("/")[0] for name in names(store)})


@pytest.mark.parametrize("optimizer", ["sgd", "fused", "groups", "tensor lr"])
def test_a_state_survives_the_disk(tmp_path: Path, optimizer: str) -> None:
    first, second = make(optimizer, "warm-up + cosine"), make(optimizer, "warm-up + cosine", seed=1)
    first.extra = {"cursor": (1, 2, 300), "best": math.inf, 3: None}  # type: ignore[dict-item]
    train(first, 3)
    said = digest(first.model, first.optimizer)
    store = CheckpointStore(LocalStore(tmp_path / "checkpoints"), attempt=1)
    place = store.write(300, capture(first), {"digest": said, "eval": {"accuracy": 0.5, "loss": math.nan}})
    assert place == str(tmp_path / "checkpoints" / "step-00000300")
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


def test_a_checkpoint_of_format_1_is_read(tmp_path: Path) -> None:
    """Written by the version before: AdamW, a schedule, tied weights, buffers, all kinds of scalars."""
    found = CheckpointStore(LocalStore(DATA / "checkpoint-format-1"), 2, run="the-run").newest_intact()
    assert found is not None
    assert (found.step, found.skipped) == (300, [])
    assert found.snapshot.digest() == found.meta["digest"] == "160bade2edd0dcc759894b24d40cfaca"
    state = make("fused", "warm-up + cosine", seed=1)
    restore(found.snapshot, state)
    assert digest(state.model, state.optimizer) == "160bade2edd0dcc759894b24d40cfaca"
    assert state.model.embed.weight[0, :2].tolist() == [-1.1185258626937866, -1.1439217329025269]
    assert state.model.head.weight is state.model.embed.weight
    assert (state.model.seen.item(), state.model.cache.tolist()) == (3, [1.75, 1.75, 1.75])
    assert state.optimizer.state[state.model.scale]["step"].item() == 3
    assert state.optimizer.param_groups[0]["lr"] == 0.0063999999999999994
    assert math.isnan(state.extra.pop("nothing"))
    assert state.extra == {
        "stop_when": {"value": 0.25, "since": 2},
        "worst": math.inf,
        "cursor": (1, 2, 300),
        "by number": {3: None},
    }
    assert math.isnan(found.meta["eval"]["loss"])


def test_what_lies_on_disk(tmp_path: Path) -> None:
    """Names, sizes and hashes of all files in the manifest; no pickle; strict JSON even with a NaN."""
    store = CheckpointStore(LocalStore(tmp_path), attempt=4, run="r1")
    path = Path(store.write(7, snapshot_of(7), {"loss": math.nan}))
    assert sorted(os.listdir(path)) == [
        "manifest.json",
        "model-1of1.4.safetensors",
        "optimizer-1of1.4.safetensors",
        "state.4.json",
    ]

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    envelope = json.loads((path / "manifest.json").read_text(), parse_constant=no_constant)
    content = envelope["content"]
    assert (envelope["format"], content["step"], content["attempt"], content["run"]) == (2, 7, 4, "r1")
    assert content["digest"] == snapshot_of(7).digest()
    assert sorted([*content["files"], "manifest.json"]) == sorted(os.listdir(path))
    for name, fact in content["files"].items():
        assert (path / name).stat().st_size == fact["num_bytes"]
        assert len(fact["xxh3_128"]) == 32
        assert not zipfile.is_zipfile(path / name)
        assert (path / name).read_bytes()[:1] != b"\x80"
    mode = (path / "model-1of1.4.safetensors").stat().st_mode
    assert oct(mode & 0o444) == oct(0o444 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_listing_needs_no_torch(tmp_path: Path) -> None:
    save(CheckpointStore(LocalStore(tmp_path), 1), 3)
    code = (
        "import sys; from god_ray.storage.store import open_store; "
        "from god_ray.checkpoint.store import CheckpointStore as S; "
        f"s = S(open_store({str(tmp_path)!r}), 1); "
        "print(s.steps(), s.meta(3)['step'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[3] 3 False\n"


def test_numbers_sort_as_numbers(at: At) -> None:
    store = at(1)
    save(store, 99_999_999, 5, 100_000_000)
    assert store.steps() == [5, 99_999_999, 100_000_000]
    found = store.newest_intact()
    assert found is not None
    assert found.step == 100_000_000
    assert store.prune(1, set()) == [5, 99_999_999]


def test_a_missing_or_empty_place_is_a_fresh_start(at: At) -> None:
    store = at(1)
    assert store.newest_intact() is None
    assert (store.steps(), store.verify(), store.prune(1, set())) == ([], {}, [])


def test_a_digest_of_another_moment_is_our_bug(at: At) -> None:
    with pytest.raises(Bug, match="not taken at the same moment"):
        at(1).write(1, snapshot_of(1), {"digest": "0" * 32})
    assert names(at(1)) == []


# ---- shares


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_are_all_of_a_state_and_nothing_twice(at: At, count: int) -> None:
    """Whatever the number of workers, the checkpoint is the same state; more workers than tensors, too."""
    state = make("fused", "warm-up + cosine")
    train(state, 2)
    store, said = at(3), digest(state.model, state.optimizer)
    shares = [capture(state, Share(index, count)) for index in range(count)]
    whole = capture(state)
    assert sorted(n for share in shares for n in share.model) == sorted(whole.model)
    assert sorted(n for share in shares for n in share.optimizer) == sorted(whole.optimizer)
    for index in reversed(range(count)):
        assert store.steps() == []
        store.saving(40).share(shares[index], Share(index, count))
    store.saving(40).finish(whole.scalars, {"digest": said}, count)
    assert store.load(40)[0].digest() == said
    assert store.verify() == {}
    assert len(names(store)) == 2 * count + 2, "no word of the workers to each other is left"


def test_shares_are_about_equal() -> None:
    sizes = {f"layer {i}": 1000 + i for i in range(40)} | {"small": 1}
    for count in (2, 3, 8):
        loads = [sum(sizes[n] for n in Share(i, count).of(sizes)) for i in range(count)]
        assert sum(loads) == sum(sizes.values())
        assert max(loads) - min(loads) <= 2 * max(sizes.values())


def test_memory_is_used_again_and_only_where_it_fits() -> None:
    state = make("fused")
    train(state, 1)
    old = capture(state)
    old.model["scale"], places = torch.zeros(2), {name: t.data_ptr() for name, t in old.model.items()}
    train(state, 1)
    new = view(state).copy(into=old)
    assert new.digest() == digest(state.model, state.optimizer)
    assert {n for n, t in new.model.items() if t.numel() and t.data_ptr() != places[n]} == {"scale"}


def test_two_attempts_never_mix(at: At) -> None:
    """Case 4.01: of two workers one has written its share when all die; the next attempt has three."""
    state = make("fused")
    train(state, 1)
    at(1).saving(10).share(capture(state, Share(0, 2)), Share(0, 2))
    left = names(at(1))
    assert at(2).newest_intact() is None
    train(state, 1)
    for index in range(3):
        at(2).saving(10).share(capture(state, Share(index, 3)), Share(index, 3))
    said = digest(state.model, state.optimizer)
    at(2).saving(10).finish(capture(state).scalars, {"digest": said}, 3)
    leader = at(2)
    assert leader.load(10)[0].digest() == said
    assert set(left) <= set(names(leader))
    leader.written(10)
    assert leader.prune(1, set()) == []
    assert not set(left) & set(names(leader)), "what the dead attempt left is gone"
    assert leader.load(10)[0].digest() == said


def test_one_of_the_same_step_is_replaced_at_once(at: At) -> None:
    save(at(1), 4)
    (file,) = (name for name in names(at(1)) if "/model" in name)
    write_bytes(at(1).store, file, b"damaged")
    assert list(at(2).verify()) == [4]
    save(at(2), 4)
    assert at(2).verify() == {}
    assert at(3).load(4)[0].digest() == snapshot_of(4).digest()
    at(3).write(4, snapshot_of(44), {})
    assert at(3).load(4)[0].digest() == snapshot_of(44).digest()


# ---- retention


def test_prune_keeps_the_newest_and_the_protected(at: At) -> None:
    store = at(1)
    save(store, 10, 20, 30, 40, 50)
    assert store.prune(2, {20, 999}) == [10, 30]
    assert store.steps() == [20, 40, 50]
    assert store.prune(2, {20}) == []
    assert folders(store) == ["step-00000020", "step-00000040", "step-00000050"]


def test_prune_must_keep_one(at: At) -> None:
    with pytest.raises(Bug):
        at(1).prune(0, set())


def test_a_damaged_one_does_not_count_as_kept(at: At) -> None:
    store = at(1)
    save(store, 10, 20, 30, 40)
    write_bytes(store.store, "step-00000040/model-1of1.1.safetensors", b"cut")
    store.store.remove("step-00000010/state.1.json")
    assert store.prune(2, set()) == [10]
    assert folders(store) == ["step-00000020", "step-00000030", "step-00000040"]


def test_already_gone_is_no_error(tmp_path: Path) -> None:
    """Somebody else removes some of it between the listing and the removal (case 4.06)."""

    class Shared(LocalStore):
        def list(self, prefix: str = "") -> dict[str, int]:
            there = super().list(prefix)
            for name in there:
                if name.startswith("step-00000001/"):
                    super().remove(name)
            return there

    save(CheckpointStore(LocalStore(tmp_path), 1), 1, 2, 3)
    assert CheckpointStore(Shared(tmp_path), 1).prune(1, set()) == [1, 2]
    assert os.listdir(tmp_path / "step-00000003")
    assert CheckpointStore(LocalStore(tmp_path), 1).steps() == [3]


def test_a_word_that_cannot_be_removed_does_not_undo_a_checkpoint(tmp_path: Path) -> None:
    class Sticky(LocalStore):
        def remove(self, name: str) -> None:
            raise PermissionError(13, "Permission denied", name)

    save(CheckpointStore(Sticky(tmp_path), 1), 1)
    store = CheckpointStore(LocalStore(tmp_path), 2)
    assert (store.steps(), store.verify()) == ([1], {})
    assert (tmp_path / "step-00000001/share-1of1.1.json").exists()
    with pytest.raises(CheckpointError, match=r"could not remove what is old in .*step-00000001"):
        CheckpointStore(Sticky(tmp_path), 2).prune(1, set())
    store.prune(1, set())
    assert not (tmp_path / "step-00000001/share-1of1.1.json").exists()


def test_what_dead_saves_left_is_swept_and_the_rest_is_let_be(at: At) -> None:
    left = ["step-00000005/model-1of2.2.safetensors", "step-00000003/share-1of2.1.json"]
    own_and_done = ["step-00000004/optimizer-2of2.3.safetensors"]
    let_be = [
        "step-00000009/model-2of2.3.safetensors",  # another worker may be writing it: it is ahead
        "step-00000002/state.4.json",  # of an attempt after this one
        "step-00000001/notes.txt",
        "step-00000006/.DS_Store",
        "step-9.tmp/model-1of1.1.safetensors",
    ]
    store = at(3)
    for name in [*left, *own_and_done, *let_be]:
        write_bytes(store.store, name, b"half")
    assert store.newest_intact() is None
    assert (store.steps(), store.verify()) == ([], {})
    save(store, 6)
    whole = [name for name in names(store) if name.startswith("step-00000006/")]
    store.prune(1, set())
    assert names(store) == sorted({*let_be, *whole})


def test_a_save_that_was_not_finished_is_named(at: At) -> None:
    save(at(1), 10)
    at(1).saving(20).share(snapshot_of(20), Share(0, 2))
    found = at(2).newest_intact()
    assert found is not None
    assert found.step == 10
    assert found.skipped == ["step-00000020: manifest.json is missing (a save that was not finished)"]


def test_a_foreign_checkpoint_is_neither_chosen_counted_nor_removed(at: At) -> None:
    """Case 4.05: step 5000 of another run lies in the folder."""
    save(at(1, "other"), 50, 5000)
    store = at(1, "mine")
    for step in (100, 200, 300):
        save(store, step)
        assert store.prune(1, set()) == [step - 100] * (step > 100)
    assert store.steps() == [300]
    found = store.newest_intact()
    assert found is not None
    assert found.step == 300
    assert found.skipped == ["step-00005000: belongs to another run (other)"]
    assert folders(store) == ["step-00000050", "step-00000300", "step-00005000"]


def test_only_foreign_ones_are_no_silent_fresh_start(at: At) -> None:
    save(at(1, "other"), 50)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        at(1, "mine").newest_intact()


def test_what_was_just_saved_is_kept_even_behind_higher_numbers(at: At) -> None:
    save(at(1), 5000)
    store = at(2)
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
