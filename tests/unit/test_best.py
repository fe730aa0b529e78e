"""The best checkpoint by `checkpoint.keep_best`: ties, NaN, a missing metric; and that retention keeps it."""

from __future__ import annotations

import math
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from checkpoint_cases import make, train
from test_checkpoint_store import snapshot_of

from god_ray.checkpoint.share import WHOLE
from god_ray.checkpoint.state import digest, view
from god_ray.checkpoint.store import CheckpointStore
from god_ray.runtime.best import best_step
from god_ray.runtime.writer import BackgroundCheckpoints, Leading
from god_ray.spec.progress import Checkpoint, KeepBest
from god_ray.storage.local import LocalStore

HIGH, LOW = KeepBest(metric="score", mode="max"), KeepBest(metric="score", mode="min")


@pytest.mark.parametrize(
    ("evaluations", "highest", "lowest"),
    [
        ([{"score": 0.1}, {"score": 0.3}, {"score": 0.2}], 2, 1),
        ([{"score": 0.3}, {"score": 0.3}, {"score": 0.3}], 1, 1),
        ([{"score": math.nan}, {"score": 0.3}, {"score": math.nan}], 2, 2),
        ([{"score": math.nan}, {"score": math.nan}], None, None),
        ([{"score": -math.inf}, {"score": 1}, {"score": math.inf}], 3, 1),
        ([None, {"loss": 1.0}, {"score": 0.5}, {}], 3, 3),
        ([None, {"loss": 1.0}], None, None),
        ([], None, None),
    ],
    ids=["plain", "ties: the earlier", "NaN never", "only NaN", "infinity", "missing", "never there", "none"],
)
def test_which_one_is_best(
    tmp_path: Path, evaluations: list[dict[str, Any] | None], highest: int | None, lowest: int | None
) -> None:
    store = CheckpointStore(LocalStore(tmp_path), 1)
    for step, found in enumerate(evaluations, 1):
        store.write(step, snapshot_of(step), {"eval": found})
    assert best_step(store, HIGH) == highest
    assert best_step(store, LOW) == lowest
    assert best_step(store, None) is None


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    """Saved first, then pruned: what is remembered is there at every moment, and so is the best so far."""
    state, store = make("fused"), CheckpointStore(LocalStore(tmp_path), 1)
    remembered: list[list[int]] = []
    policy = Checkpoint(keep=2, keep_best=HIGH)
    leading = Leading(policy, {}, lambda: None, lambda step: remembered.append(store.steps()))
    saves = BackgroundCheckpoints(store, WHOLE, leading)
    scores = [0.5, 0.1, 0.9, 0.2, math.nan, 0.9, 0.3]
    for step, score in enumerate(scores, 1):
        train(state, 1, seed=step)
        meta = {"digest": digest(state.model, state.optimizer), "eval": {"score": score}}
        saves.save(step, view(state), meta)
        saves.publish(step)
        saves.drain()
        assert saves.written() == step
    saves.close()
    assert remembered == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [3, 4, 5, 6], [3, 5, 6, 7]]
    assert store.steps() == [3, 6, 7]
    assert store.verify() == {}


def test_an_error_of_the_thread_comes_out_at_the_next_call(tmp_path: Path) -> None:
    """And the checkpoint before is whole; nothing is written once the loop has closed."""
    state, store = make("fused"), CheckpointStore(LocalStore(tmp_path), 1)
    gate = Event()

    def sync_ledger() -> None:
        gate.wait(60)
        raise OSError("the ledger's disk is full")

    store.write(1, snapshot_of(1), {})
    saves = BackgroundCheckpoints(store, WHOLE, Leading(Checkpoint(), {}, sync_ledger, lambda step: None))
    saves.save(2, view(state), {"digest": digest(state.model, state.optimizer)})
    saves.publish(1)
    saves.publish(2)
    assert saves.written() is None
    gate.set()
    with pytest.raises(OSError, match="the ledger's disk is full"):
        saves.drain()
    saves.close()
    assert store.steps() == [1]
