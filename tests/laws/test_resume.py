"""Kills and resumes: the run that was disturbed is, to the last bit, the run that was not."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import saved

from god_ray.api import Result
from god_ray.errors import CheckpointError
from god_ray.loop.request import Request
from god_ray.plan import epoch_checksum
from god_ray.runtime.run_folder import RunFolder
from laws.crew import DEBUG, Crew, kill_when, ledger
from laws.disturbed import RowsOf, SpecOf, record_of, same, undisturbed
from laws.member import Fault

ALL = [0, 1, 2]
KILLS = [
    *[(place, 10, ranks) for place in ("leaf", "exchanged", "committed") for ranks in ([0], [1], ALL)],
    ("evaluating", 10, [0]),
    ("evaluating", 10, [1]),
    ("saving", 8, [0]),  # only the leader saves
    ("leaf", 1, [0]),
    ("leaf", 1, ALL),
    ("committed", 20, [0]),  # the last step
    ("committed", 20, [2]),
    ("committed", 20, ALL),
]


@pytest.mark.parametrize(("place", "step", "ranks"), KILLS)
def test_killed_at(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, place: str, step: int, ranks: list[int]
) -> None:
    """At every place where states may differ between workers; the group is formed again, as Ray does it."""
    save, data = {"every_s": None, "every_steps": 4}, {"eval": rows_of(21, seed=1)}
    spec = spec_of("batch_norm", rows_of(75), batch_size=17, epochs=4, data=data, checkpoint=save)
    faults = [Fault(rank, step, place) for rank in ranks]
    result, attempts = crew.train(spec, 3, faults=faults, restarts=1)
    assert len(attempts.errors) == 1
    same(result, undisturbed(crew, spec))
    record = record_of(result)
    assert record["generation"] == 2
    assert {r["generation"] for r in ledger(result)} == ({2} if step == 1 else {1, 2})
    resumed = {f["resumed_at"] for f in attempts.facts[1]}
    assert len(resumed) == 1
    assert resumed.pop() in range(max(step - 6, 0), step)


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_again_and_again(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, seed: int) -> None:
    """One or all of 1 to 7 workers, at random moments; another size each time; seven lanes, tails."""
    dice = random.Random(seed)
    config = {
        "model": dice.choice(["batch_norm", "buffers", "unused"]),
        "schedule": "sequential",
        "transform": True,
    }
    spec = spec_of(
        config,
        rows_of(98, 3, 10),
        batch_size=23,
        lanes=7,
        epochs=8,
        clip_norm=0.7,
        data={"shuffle": dice.choice(["full", "window", "none"]), "eval": rows_of(21, seed=1)},
        checkpoint={"every_s": None, "every_steps": dice.choice([3, 5, 7])},
    )
    size = dice.randint(2, 7)
    at = dice.randint(2, 6)
    result, attempts = crew.train(spec, size, watch=kill_when(at, [dice.randrange(size)]))
    kills = 0
    while result.state == "FAILED" and kills < 6:
        kills += 1
        size = dice.choice([n for n in range(1, 8) if n != size])
        reached = len(ledger(result))
        at = min(reached + dice.randint(1, 6), 40)
        ranks = range(size) if dice.random() < 0.4 else [dice.randrange(size)]
        watch = kill_when(at, list(ranks)) if kills < 6 else None
        result, attempts = crew.resume(result, size, watch=watch)
    assert kills
    same(result, undisturbed(crew, spec, DEBUG))
    for epoch in range(8):
        sums = [int(r["row_checksum"]) for r in ledger(result) if r["epoch"] == epoch]
        assert sum(sums) % 2**64 == epoch_checksum(98)
    assert attempts.facts[-1]


def test_the_driver_is_killed(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Driver and worker in one process, SIGKILLed twice; then resumed with three workers."""
    spec = spec_of("batch_norm", rows_of(75), epochs=4, checkpoint={"every_s": None, "every_steps": 3})
    with pytest.raises(ConnectionError):
        crew.call("laws.member", "drive", spec, [Fault(0, 8, "exchanged")])
    folder = RunFolder(Path(spec["storage"]) / spec["name"])
    assert folder.read()["state"] == "RUNNING"
    assert not folder.is_driven()
    left = Result(spec["name"], "", "", 0, {}, "", folder.path, folder.place)
    result, _ = crew.resume(left, DEBUG, faults=[Fault(0, 13, "committed", generation=2)])
    assert result.state == "FAILED"
    result, attempts = crew.resume(result, 3)
    same(result, undisturbed(crew, spec))
    assert attempts.facts[0][0]["resumed_at"] in (9, 12)
    assert {r["generation"] for r in ledger(result)} == {1, 2, 3}


def test_killed_in_the_final_barrier(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """One worker has committed the last step and dies before that is published: no success without it."""
    spec = spec_of("dropout", rows_of(64), epochs=2)
    result, _ = crew.train(spec, 2, faults=[Fault(1, 8, "committed")])
    assert result.state == "FAILED"
    assert len(ledger(result)) == 7
    result, _ = crew.resume(result, 4)
    same(result, undisturbed(crew, spec))


def test_a_finished_run_can_be_resumed_and_stays_what_it_is(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf
) -> None:
    spec = spec_of("dropout", rows_of(64), epochs=2)
    first, _ = crew.train(spec, 2)
    again, _ = crew.resume(first, 3)
    same(again, first)


def test_saved_by_the_clock(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Whose clock it is does not matter: all save alike, and the run is the same."""
    save = {"every_s": 0.001, "keep": 2}
    spec = spec_of("batch_norm", rows_of(75), batch_size=17, epochs=4, checkpoint=save)
    result, attempts = crew.train(spec, 3, faults=[Fault(0, 12, "exchanged")], restarts=1)
    same(result, undisturbed(crew, spec))
    assert attempts.facts[1][0]["resumed_at"] >= 8, "the newest ones were kept"


def test_the_best_checkpoint_stays(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """What is best is remembered over kills and resumes: the same checkpoints are there at the end."""
    save = {"every_s": None, "every_steps": 3, "keep": 1, "keep_best": {"metric": "accuracy", "mode": "max"}}
    data = {"eval": rows_of(21, seed=1)}
    spec = spec_of("mlp", rows_of(64), epochs=6, eval={"every": 2}, data=data, checkpoint=save)
    result, _ = crew.train(spec, 2, faults=[Fault(1, 11)])
    result, _ = crew.resume(result, 3, asks=[(16, Request("stop"))])
    result, _ = crew.resume(result, 1)
    reference = undisturbed(crew, spec)
    same(result, reference)
    scores = {r["step"]: r["eval"]["accuracy"] for r in ledger(result) if "eval" in r}
    best = min(step for step, score in scores.items() if score == max(scores.values()))
    for run in (result, reference):
        assert saved.steps(run.folder / "checkpoints") == sorted({best, 24})


def test_an_error_in_one_worker_is_the_one_that_is_told(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Its peers lose their connection to it; that is not the cause."""
    spec = spec_of("mlp", rows_of(64), recipe="faulty.py", epochs=3)
    result, _ = crew.train(spec, 3, environ={1: {"RAISES": "6"}})
    assert result.state == "FAILED"
    assert "no such thing as step 6" in str(result.failure)
    assert len(ledger(result)) == 4
    result, _ = crew.resume(result, 3)
    same(result, undisturbed(crew, spec))


# ---- damaged checkpoints


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_by_name(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    spec = spec_of("batch_norm", rows_of(64), epochs=4, checkpoint={"every_s": None, "every_steps": 4})
    result, _ = crew.train(spec, 2, asks=[(9, Request("stop"))])
    damage(saved.files(result.folder / "checkpoints", 10, "optimizer")[1])
    result, attempts = crew.resume(result, 3)
    same(result, undisturbed(crew, spec))
    for facts in attempts.facts[0]:
        assert facts["resumed_at"] == 8
        assert "step-00000010" in facts["skipped"][0]
        assert "optimizer-2of2.1.safetensors" in facts["skipped"][0]


def test_when_none_is_intact_the_run_does_not_start_over(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf
) -> None:
    spec = spec_of("mlp", rows_of(64), epochs=4)
    result, _ = crew.train(spec, 2, asks=[(5, Request("stop"))])
    damage(saved.files(result.folder / "checkpoints", 6, "model")[0])
    result, _ = crew.resume(result, 2)
    assert result.state == "FAILED"
    assert isinstance(result.failure, CheckpointError)
    assert "step-00000006" in str(result.failure)


def test_when_all_are_gone_the_run_does_not_start_over(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """A run that never had one may: it repeats its steps. One that had some must not, in silence."""
    spec = spec_of("mlp", rows_of(64), epochs=4)
    result, _ = crew.train(spec, 2, asks=[(5, Request("stop"))])
    shutil.rmtree(result.folder / "checkpoints" / "step-00000006")
    result, _ = crew.resume(result, 2)
    assert result.state == "FAILED"
    assert isinstance(result.failure, CheckpointError)
    assert "no checkpoint is left" in result.failure.what
    assert "of step 6" in result.failure.why
