"""The thread that reads a boundary's state: the loop waits at the joins only, and gets what was there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from checkpoint_cases import make, train
from small_runs import RECIPE, STEPS, project, trained
from torch import nn
from torch.optim import SGD

from god_ray import api
from god_ray.checkpoint.share import WHOLE, Share
from god_ray.checkpoint.state import Snapshot, TrainState, View, capture, digest, view
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import RecipeError
from god_ray.loop.loop import Loop
from god_ray.loop.reading import Reading
from god_ray.monitor.ledger import Ledger
from god_ray.runtime import inline
from god_ray.runtime.run_folder import RunFolder
from god_ray.storage.local import LocalStore

DEADLINE_S = 60.0
NORMS = RECIPE.replace("torch.nn.ReLU()", "torch.nn.BatchNorm1d(8), torch.nn.ReLU()")


def of(state: TrainState) -> str:
    return digest(state.model, state.optimizer)


def with_norm() -> TrainState:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    return TrainState(model, SGD(model.parameters(), lr=0.1, momentum=0.9))


def test_what_is_read_is_what_was_there(tmp_path: Path) -> None:
    """The digest is there while the copy is held up; forward and backward passes change nothing of either."""
    state, gate = with_norm(), Event()
    state.model(torch.randn(5, 4)).sum().backward()
    state.optimizer.step()
    before, expected = of(state), capture(state)
    copies: list[Snapshot] = []

    def save(still: View, found: str) -> None:
        assert gate.wait(DEADLINE_S)
        assert found == before
        copies.append(still.copy())

    reading = Reading(at_once=False)
    reading.begin(view(state), save)
    assert reading.digest() == before
    state.model(torch.randn(5, 4)).sum().backward()
    assert of(state) != before, "a forward pass changes the buffers"
    assert copies == []
    gate.set()
    reading.finish()
    assert reading.digest() == ""
    state.optimizer.step()
    assert copies[0].digest() == before
    assert copies[0].scalars == expected.scalars
    assert all(torch.equal(copies[0].model[name], value) for name, value in expected.model.items())
    reading.close()


def fails(_still: View, _found: str) -> None:
    raise OSError("no memory left")


def test_errors_come_out_at_the_join() -> None:
    state, reading = with_norm(), Reading(at_once=False)
    reading.begin(view(state), fails)
    assert reading.digest() == of(state)
    with pytest.raises(OSError, match="no memory left"):
        reading.finish()
    reading.finish()  # and once only
    reading.begin(view(state))
    assert reading.digest() == of(state)
    reading.finish()
    reading.close()


def test_at_once_is_done_here() -> None:
    """By this thread, errors included."""
    copies: list[str] = []

    def save(_still: View, found: str) -> None:
        copies.append(found)
        assert threading.current_thread() is threading.main_thread()

    reading = Reading(at_once=True)
    reading.begin(view(with_norm()), save)
    assert copies == [reading.digest()]
    reading.finish()
    with pytest.raises(OSError, match="no memory left"):
        reading.begin(view(with_norm()), fails)
    reading.close()


def test_closing_ends_the_thread() -> None:
    """Whether it has something to do or not."""
    begun, gate, done = Event(), Event(), list[str]()

    def save(_still: View, _found: str) -> None:
        begun.set()
        assert gate.wait(DEADLINE_S)
        done.append("save")

    Reading(at_once=False).close()
    reading = Reading(at_once=False)
    reading.begin(view(with_norm()), save)
    assert begun.wait(DEADLINE_S)
    assert len(readers()) == 1
    gate.set()
    reading.close()
    assert done == ["save"]
    assert not readers()


def test_room_is_what_a_copy_fills() -> None:
    """Of the share's tensors, and of no others."""
    state = make("fused")
    train(state, 2)
    for share in (WHOLE, Share(1, 3)):
        still = view(state)
        room = still.room(share)
        copy = still.copy(share, room)
        assert copy.digest() == capture(state, share).digest()
        pairs = [(copy.model, room.model), (copy.optimizer, room.optimizer)]
        for filled, empty in pairs:
            assert filled.keys() == empty.keys()
            assert all(filled[name].data_ptr() == empty[name].data_ptr() for name in filled)


# ---- whole runs


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("reading")]


def watched(monkeypatch: pytest.MonkeyPatch, change: Callable[[Loop], None]) -> None:
    """`change` each loop that is built."""
    assemble = inline.assemble

    def assembled(*args: Any) -> Loop:
        loop = assemble(*args)
        change(loop)
        return loop

    monkeypatch.setattr(inline, "assemble", assembled)


def test_a_thread_that_is_late_delays_no_leaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading but the last begins when all leaves of the next step are done; they change buffers."""
    spec = project(tmp_path, NORMS)
    plain = trained(spec, tmp_path / "runs", "plain")
    gates: list[Event] = []
    opened: list[bool] = []
    called: list[object] = []

    def hold(loop: Loop) -> None:
        run_leaf, begin = loop.step.runner.run, loop.reading.begin
        save, prepare = loop.checkpoints.save, loop.checkpoints.prepare

        def leaf(cursor: Any, lane: int, *args: Any, **options: Any) -> Any:
            result = run_leaf(cursor, lane, *args, **options)
            if lane == loop.step.hi - 1 or cursor.step_in_epoch == 6:  # of the last step only lane 0 has rows
                for gate in gates:
                    gate.set()
            return result

        def late(*args: Any) -> None:
            assert loop.pending is not None
            if loop.pending["step"] < STEPS:
                gate = Event()
                gates.append(gate)
                loop.reading.afterwards(lambda: opened.append(gate.wait(DEADLINE_S)))
            begin(*args)

        def saving(step: int, *args: Any) -> None:
            called.append(step)
            assert threading.current_thread() in readers()
            save(step, *args)

        def preparing(still: View) -> None:
            called.append("prepare")
            prepare(still)

        loop.step.runner.run, loop.reading.begin = leaf, late  # type: ignore[method-assign]
        loop.checkpoints.save, loop.checkpoints.prepare = saving, preparing  # type: ignore[method-assign]

    watched(monkeypatch, hold)
    late = trained(spec, tmp_path / "runs", "late")
    assert opened == [True] * len(gates)
    records, expected = ([*Ledger.read(run.ledger)] for run in (late, plain))
    assert [record.get("digest") for record in records] == [record.get("digest") for record in expected]
    assert {5, 10, 15, 20} <= {record["step"] for record in records if "digest" in record}
    saves = [step for step in called if step != "prepare"]
    assert called == ["prepare", *saves]
    assert {4, 8, 12, 16, 20, STEPS} <= set(saves)
    assert len(gates) == sum("digest" in record for record in records) - 1
    assert not readers()
    store = CheckpointStore(LocalStore(late.checkpoints), 0)
    for step in store.steps():
        assert store.load(step)[0].digest() == expected[step - 1]["digest"]


def test_a_run_whose_loop_reads_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: the same digests."""
    spec = project(tmp_path, NORMS)
    plain = trained(spec, tmp_path / "runs", "plain")
    watched(monkeypatch, lambda loop: setattr(loop.reading, "at_once", True))
    alone = trained(spec, tmp_path / "runs", "alone")
    digests = [[record.get("digest") for record in Ledger.read(run.ledger)] for run in (plain, alone)]
    assert digests[0] == digests[1]


def test_a_parameter_that_a_forward_pass_changes_is_refused(tmp_path: Path) -> None:
    """Each worker would change its own; and what is read would change under the thread."""
    normed = RECIPE.replace(
        "def loss(model, batch):\n",
        "def loss(model, batch):\n    with torch.no_grad():\n        model[2].weight.renorm_(2, 0, 0.1)\n",
    )
    result = api.train(project(tmp_path, normed), debug=True, name="a", storage=str(tmp_path / "runs"))
    assert result.state == "FAILED"
    assert isinstance(result.failure, RecipeError)
    assert "2.weight was changed in place by a forward or backward pass" in result.failure.what
    assert RunFolder(result.folder).read()["state"] == "FAILED"
    assert [record["step"] for record in Ledger.read(result.folder / "ledger")] == [1, 2, 3]
    assert not readers()
