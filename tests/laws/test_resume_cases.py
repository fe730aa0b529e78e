"""Resumes that went wrong in other systems, as they must go here (public reports, group 1)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import pytest
import saved

from god_ray import api
from god_ray.errors import CheckpointError
from god_ray.loop.loop import Outcome
from god_ray.loop.request import Request
from god_ray.plan import epoch_checksum
from god_ray.runtime import inline
from laws.crew import TESTS, Crew, ledger
from laws.disturbed import RowsOf, SpecOf, same, undisturbed
from laws.member import Fault


def test_resume_in_a_later_epoch(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Case 1.01: 125 steps an epoch, killed after the checkpoint at step 200, 75 steps into epoch 1."""
    save = {"every_s": None, "every_steps": 200}
    spec = spec_of(
        "dropout", rows_of(1000, group=100), batch_size=8, steps=260, digest_every=50, checkpoint=save
    )
    result, attempts = crew.train(spec, 2, faults=[Fault(1, 204)], restarts=1)
    assert attempts.facts[1][0]["resumed_at"] == 200
    same(result, undisturbed(crew, spec))
    assert ledger(result)[200]["epoch"] == 1
    assert ledger(result)[200]["step_in_epoch"] == 75


def test_checkpoint_exactly_on_the_epoch_boundary(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Case 1.03: 64 rows, batch 8, 3 epochs, the only checkpoint after step 8: exactly 24 updates in all."""
    spec = spec_of("mlp", rows_of(64), batch_size=8, epochs=3)
    result, _ = crew.train(spec, 2, asks=[(7, Request("stop"))])
    assert (result.state, result.step) == ("STOPPED", 8)
    result, attempts = crew.resume(result, 2)
    assert (result.state, result.step) == ("SUCCEEDED", 24)
    assert attempts.facts[0][0]["resumed_at"] == 8
    same(result, undisturbed(crew, spec))
    found = saved.tensors(result.folder / "checkpoints", 24, "optimizer")
    assert {int(v) for k, v in found.items() if k.endswith("::step")} == {24}


@pytest.mark.parametrize("made", [0, 8, 23])
def test_fewer_updates_than_planned_are_no_success(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, made: int
) -> None:
    """Case 1.03, second half: whatever a worker says."""
    outcome = asdict(Outcome("succeeded", "all steps done", made, "00"))
    with mock.patch.object(inline, "fit", return_value={"outcome": outcome}):
        result = api.train(spec_of("mlp", rows_of(64), batch_size=8, epochs=3), debug=True)
    assert result.state == "FAILED"
    assert f"{made} of 24 updates" in result.reason


def test_the_position_survives_a_failure(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Case 1.04: 10 files of 1000 rows, 2 workers, one killed after 40 % of the epoch, in windows."""
    save = {"every_s": None, "every_steps": 15}
    data = {"shuffle": "window", "window": 2}
    rows = rows_of(10_000, files=10, group=100)
    spec = spec_of("mlp", rows, batch_size=100, epochs=1, digest_every=10, checkpoint=save, data=data)
    result, attempts = crew.train(spec, 2, faults=[Fault(1, 41)], restarts=1)
    assert attempts.facts[1][0]["resumed_at"] == 30
    same(result, undisturbed(crew, spec))
    sums = [int(r["row_checksum"]) for r in ledger(result)]
    assert sum(sums) % 2**64 == epoch_checksum(10_000)
    read = sum(f["counters"]["rows_by_worker"] for f in attempts.facts[1])
    assert read == 4 * (2_500 - 3 * 200), "the three windows before row 750 of each lane are not read again"


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 3), (3, 4), (2, 1)])
def test_another_size_goes_on_where_the_first_stopped(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, tmp_path: Path, before: int, after: int
) -> None:
    """Case 1.05, in the order of the file: rows are counted in global batches, not in anybody's own."""
    spec = spec_of("mlp", rows_of(32), batch_size=8, epochs=1, data={"shuffle": "none"})
    environ = {rank: {"RECORD_IDS": str(tmp_path)} for rank in range(4)}
    result, _ = crew.train(spec, before, asks=[(1, Request("stop"))], environ=environ)
    seen = {row for file in tmp_path.glob("*") for line in file.open() for row in json.loads(line)}
    lanes_in_order = {8 * lane + row for lane in range(4) for row in range(4)}
    assert seen == lanes_in_order, "lane v's piece of the file begins at row 8 * v; two steps of two rows"
    for file in tmp_path.glob("*"):
        file.unlink()
    result, _ = crew.resume(result, after, environ=environ)
    again = {row for file in tmp_path.glob("*") for line in file.open() for row in json.loads(line)}
    assert again == set(range(32)) - seen
    same(result, undisturbed(crew, spec))


def test_several_resizes_and_kills_inside_one_epoch(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Case 1.07: 1000 rows, sizes 4, 5, 7, 8, 3, a kill between each, none at a checkpoint."""
    save = {"every_s": None, "every_steps": 7}
    spec = spec_of(
        "dropout", rows_of(1000), batch_size=20, lanes=8, epochs=1, digest_every=5, checkpoint=save
    )
    result, _ = crew.train(spec, 4, faults=[Fault(2, 10)])
    for generation, (size, kill) in enumerate([(5, 18), (7, 29), (8, 38)], 2):
        assert result.state == "FAILED"
        result, _ = crew.resume(result, size, faults=[Fault(size - 1, kill, generation=generation)])
    result, _ = crew.resume(result, 3)
    same(result, undisturbed(crew, spec))
    sizes = [r["num_workers"] for r in ledger(result)]
    assert sizes == [4] * 8 + [5] * 8 + [7] * 11 + [8] * 9 + [3] * 14
    assert sum(int(r["row_checksum"]) for r in ledger(result)) % 2**64 == epoch_checksum(1000)


def test_later_epochs_are_whole(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Case 1.09: 100 batches an epoch, resumed at 30, a limit of 300 steps: 70, 100 and 100 are left."""
    spec = spec_of("mlp", rows_of(400, group=100), batch_size=4, lanes=2, steps=300, digest_every=30)
    result, _ = crew.train(spec, 2, asks=[(29, Request("stop"))])
    result, _ = crew.resume(result, 1)
    assert (result.state, result.step) == ("SUCCEEDED", 300)
    left = Counter(r["epoch"] for r in ledger(result) if r["generation"] == 2)
    assert left == {0: 70, 1: 100, 2: 100}


@pytest.mark.parametrize("schedule", ["milestone", "lambda", "sequential", "one cycle"])
@pytest.mark.parametrize("stop", [3, 8])
def test_learning_rates_go_on(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, schedule: str, stop: int) -> None:
    """Case 1.11: stopped inside the warm-up and after epoch 2; the milestone is at the end of epoch 4."""
    spec = spec_of({"model": "mlp", "schedule": schedule}, rows_of(64), epochs=6)
    result, _ = crew.train(spec, 2, asks=[(stop - 1, Request("stop"))])
    assert result.step == stop
    result, _ = crew.resume(result, 1)
    reference = undisturbed(crew, spec)
    assert [r["lr"] for r in ledger(result)] == [r["lr"] for r in ledger(reference)]
    same(result, reference)
    if schedule == "milestone":
        assert [r["lr"] for r in ledger(result)] == [0.01] * 16 + [pytest.approx(0.001)] * 8


def test_a_checkpoint_without_schedule_is_refused(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, tmp_path: Path
) -> None:
    """Case 1.11: the recipe has a schedule, the checkpoint none. No fresh start, no guess."""
    zoo = (TESTS / "recipes" / "zoo.py").read_text()
    recipe = tmp_path / "recipe.py"
    recipe.write_text(zoo.replace('config.get("schedule", "lambda")', "None"))
    spec = {**spec_of("mlp", rows_of(64), epochs=2), "recipe": str(recipe)}
    result, _ = crew.train(spec, 2, asks=[(3, Request("stop"))])
    recipe.write_text(zoo)
    result, _ = crew.resume(result, 2)
    assert result.state == "FAILED"
    assert isinstance(result.failure, CheckpointError)
    assert "schedule" in str(result.failure)
    assert len(ledger(result)) == 4


def draws_in(folder: Path) -> set[tuple[tuple[int, ...], tuple[float, ...]]]:
    lines = [json.loads(line) for file in folder.glob("*") for line in file.open()]
    return {(tuple(ids), tuple(draws)) for ids, draws in lines}


def test_random_streams_belong_to_steps_and_lanes(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, tmp_path: Path
) -> None:
    """Cases 1.13 and 1.14: worker 1 draws more than it should; resumed 2 -> 4 -> 3. Every leaf's torch, numpy
    and `random` are those of the undisturbed run, and no two leaves share any. A checkpoint holds no random
    state that could go to the wrong worker, or be missing.
    """
    spec = spec_of("dropout", rows_of(64), epochs=6, digest_every=1)
    folders = {name: tmp_path / name for name in ("disturbed", "reference")}
    for folder in folders.values():
        folder.mkdir()
    environ = {
        rank: {"RECORD_DRAWS": str(folders["disturbed"]), "EXTRA_DRAWS": str(3 * (rank == 1))}
        for rank in range(4)
    }
    result, _ = crew.train(spec, 2, asks=[(9, Request("stop"))], environ=environ)
    result, _ = crew.resume(result, 4, asks=[(16, Request("stop"))], environ=environ)
    result, _ = crew.resume(result, 3, environ=environ)
    plain = {**spec, "name": spec["name"] + "-reference"}
    reference, _ = crew.train(plain, 1, environ={0: {"RECORD_DRAWS": str(folders["reference"])}})
    same(result, reference)
    ours, theirs = (draws_in(folder) for folder in folders.values())
    assert ours == theirs
    assert len(ours) == 24 * 4
    for generator in range(3):
        assert len({draws[generator] for _, draws in ours}) == 24 * 4
    state = saved.files(result.folder / "checkpoints", 24, "state")[0].read_text()
    assert "rng" not in state
    assert "random" not in state


def test_all_workers_hold_the_checkpoint_after_loading(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Case 1.15: BatchNorm's statistics, too. Whose they are: averages over lanes, weighted by rows."""
    spec = spec_of("buffers", rows_of(75), epochs=4)
    result, _ = crew.train(spec, 2, asks=[(9, Request("stop"))])
    saved = ledger(result)[-1]["digest"]
    result, attempts = crew.resume(result, 4)
    assert [f["digest"] for f in attempts.facts[0]] == [saved] * 4
    assert [f["resumed_at"] for f in attempts.facts[0]] == [10] * 4
