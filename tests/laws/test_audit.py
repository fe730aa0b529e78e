"""What must not go unnoticed: a wrong bit in one worker, another machine, a loss that is no number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import saved

from god_ray.errors import AuditMismatch, FingerprintMismatch, LedgerMismatch, RunFailed
from god_ray.loop.request import Request
from laws.crew import DEBUG, TESTS, Crew, happened, ledger
from laws.member import Fault

SpecOf = Callable[..., dict[str, Any]]
RowsOf = Callable[..., str]


@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("step", [1, 6, 8])
def test_one_wrong_gradient_element(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, broken: int, step: int
) -> None:
    """Off by one unit in the last place from step 1, 6 or 8 on: found at the next audit (1, 6, 12)."""
    spec = spec_of("mlp", rows_of(160), recipe="faulty.py", epochs=2, digest_every=6)
    result, _ = crew.train(spec, 3, environ={broken: {"WRONG_GRADIENT": str(step)}})
    assert result.state == "FAILED"
    assert isinstance(result.failure, AuditMismatch)
    found = {1: 1, 6: 6, 8: 12}[step]
    assert f"of step {found}." in result.failure.what
    assert f"worker {broken} " in result.failure.what
    assert len(ledger(result)) in (found - 1, found - 2), "the step was not applied"


def test_a_newcomer_is_audited_at_once(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """After a resume, in the middle between two audit steps."""
    spec = spec_of("mlp", rows_of(160), recipe="faulty.py", epochs=2, digest_every=1000)
    result, _ = crew.train(spec, 2, asks=[(6, Request("stop"))])
    result, _ = crew.resume(result, 3, environ={2: {"WRONG_GRADIENT": "1"}})
    assert isinstance(result.failure, AuditMismatch)
    assert "of step 8." in result.failure.what
    assert "worker 2 " in result.failure.what


def test_two_threads_in_one_worker(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Set behind god_ray's back in the middle of the run."""
    spec = spec_of("wide", rows_of(256), recipe="faulty.py", batch_size=64, epochs=4, digest_every=5)
    result, _ = crew.train(spec, 3, environ={1: {"THREADS": "7"}})
    assert isinstance(result.failure, AuditMismatch)
    assert "of step 10." in result.failure.what
    assert "worker 1 " in result.failure.what


@pytest.mark.parametrize("step", [5, 7])
def test_a_flipped_bit_in_one_state(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, step: int) -> None:
    """After a digest step the digests differ; between two of them the next audit sees what came of it."""
    spec = spec_of("mlp", rows_of(160), recipe="faulty.py", epochs=2, digest_every=5)
    result, _ = crew.train(spec, 3, environ={1: {"FLIPPED_BIT": str(step)}})
    assert isinstance(result.failure, AuditMismatch)
    if step == 5:
        assert "different states after step 5" in result.failure.what
        hashes = result.failure.why.split("[")[1].rstrip("].").split(", ")
        assert hashes[0] == hashes[2] != hashes[1]
        assert len(ledger(result)) == 4, "a state that workers do not agree on is not published"
    else:
        assert "of step 10." in result.failure.what


def test_a_flipped_bit_in_the_last_step(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    spec = spec_of("mlp", rows_of(160), recipe="faulty.py", steps=7, digest_every=100)
    result, _ = crew.train(spec, 2, environ={1: {"FLIPPED_BIT": "7"}})
    assert isinstance(result.failure, AuditMismatch)
    assert len(ledger(result)) == 6


def test_audits_find_nothing_where_nothing_is(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Every step audited, tails and absent lanes included; and with one worker, which audits itself."""
    for workers in (DEBUG, 1, 3):
        spec = spec_of(
            "transformer", rows_of(75), recipe="faulty.py", batch_size=17, epochs=3, digest_every=1
        )
        result, _ = crew.train(spec, workers)
        assert result.state == "SUCCEEDED"


# ---- fingerprints


def test_another_number_of_threads_is_refused(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    spec = spec_of("mlp", rows_of(64), epochs=2)
    result, _ = crew.train(spec, 3, environ={1: {"PINNED_THREADS": "2"}})
    assert isinstance(result.failure, FingerprintMismatch)
    assert "threads: the run has 1, worker 1 has 2" in result.failure.why
    assert ledger(result) == []


def test_threads_that_a_recipe_sets_are_set_back(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    spec = spec_of("wide", rows_of(256), recipe="faulty.py", batch_size=64, epochs=2)
    result, _ = crew.train(spec, 3, environ={1: {"THREADS": "0"}})
    assert result.state == "SUCCEEDED", result.failure


def test_another_instruction_set_is_refused(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    spec = spec_of("mlp", rows_of(64), epochs=2)
    spec["determinism"]["isa"] = None
    result, _ = crew.train(spec, 2, kinds={1: "plain"})
    assert isinstance(result.failure, FingerprintMismatch)
    assert "isa: the run has " in result.failure.why
    assert "worker 1 has DEFAULT" in result.failure.why
    assert ledger(result) == []


def test_a_resume_elsewhere_is_refused(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """All workers alike, but not like those that the run began with; where it began it goes on."""
    spec = spec_of("mlp", rows_of(64), epochs=3)
    spec["determinism"]["isa"] = None
    result, _ = crew.train(spec, 2, asks=[(5, Request("stop"))])
    refused, _ = crew.resume(result, 2, kinds={0: "plain", 1: "plain"})
    assert isinstance(refused.failure, FingerprintMismatch)
    assert "worker 0 has DEFAULT" in refused.failure.why
    result, _ = crew.resume(result, 2)
    assert result.state == "SUCCEEDED"


def test_an_instruction_set_that_one_worker_lacks(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """`isa: avx2` is asked for and one worker cannot: its own words are what comes out."""
    if crew.isa is None:
        pytest.skip("this processor has no AVX2")
    result, _ = crew.train(spec_of("mlp", rows_of(64), epochs=2), 2, kinds={1: "plain"})
    assert result.state == "FAILED"
    assert "worker 1" in str(result.failure)
    assert "avx2 cannot be had" in str(result.failure)


# ---- results that are wrong, or no numbers


def test_a_replay_that_differs_is_found(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, tmp_path: Path) -> None:
    """The recipe is edited between a kill and the resume: the steps done again come out differently."""
    for name in ("zoo.py", "faulty.py"):
        (tmp_path / name).write_text((TESTS / "recipes" / name).read_text())
    recipe = tmp_path / "zoo.py"
    spec = spec_of("mlp", rows_of(64), epochs=5, checkpoint={"every_s": None, "every_steps": 4})
    spec["recipe"] = str(recipe)
    result, _ = crew.train(spec, 2, faults=[Fault(1, 7, "exchanged")])
    before = happened(result)
    loss = "functional.cross_entropy(model"
    recipe.write_text(recipe.read_text().replace(loss, f"1.5 * {loss}"))
    result, _ = crew.resume(result, 3)
    assert result.state == "FAILED"
    assert isinstance(result.failure, LedgerMismatch)
    assert "step 5 was done again and " in result.failure.what
    assert happened(result) == before


@pytest.mark.parametrize("ranks", [[1], [0, 1]], ids=["one worker", "all"])
@pytest.mark.parametrize("step", [50, 51])
def test_a_loss_that_is_no_number(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, ranks: list[int], step: int
) -> None:
    """Case 11.06: NaN from step 50 (or 51, just after a save) on, saved every 10, 2 kept: all stop there,
    what was done before it is published and saved, and the reason says where.
    """
    save = {"every_s": None, "every_steps": 10, "keep": 2}
    spec = spec_of("mlp", rows_of(160), recipe="faulty.py", steps=200, digest_every=100, checkpoint=save)
    result, _ = crew.train(spec, 2, environ={rank: {"NAN_LOSS": str(step)} for rank in ranks})
    assert result.state == "FAILED"
    assert type(result.failure) is RunFailed
    lanes = "[2, 3]" if ranks == [1] else "[0, 1, 2, 3]"
    assert f"the loss is nan at step {step} (epoch " in result.reason
    assert f"from lanes {lanes}" in result.reason
    assert [r["step"] for r in ledger(result)] == list(range(1, step))
    assert saved.steps(result.folder / "checkpoints") == ([30, 40] if step == 50 else [40, 50])
    result, attempts = crew.resume(result, 2)
    assert (result.state, result.step) == ("SUCCEEDED", 200), "the cause is gone"
    assert attempts.facts[0][0]["resumed_at"] == (step - 1) // 10 * 10


@pytest.mark.parametrize("step", [50, 52])
def test_a_gradient_that_is_no_number(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, step: int) -> None:
    """Case 11.06 again: the loss of that step is a number, its gradient is not. No such weights are saved."""
    save = {"every_s": None, "every_steps": 10, "keep": 1}
    spec = spec_of("mlp", rows_of(160), recipe="faulty.py", steps=60, digest_every=100, checkpoint=save)
    result, _ = crew.train(spec, 2, environ={rank: {"NAN_GRADIENT": str(step)} for rank in (0, 1)})
    assert result.state == "FAILED"
    assert type(result.failure) is RunFailed
    said = "holds NaN or infinity after step 50." if step == 50 else "the loss is nan at step 53"
    assert said in result.reason
    result, attempts = crew.resume(result, 2)
    assert (result.state, result.step) == ("SUCCEEDED", 60)
    assert attempts.facts[0][0]["resumed_at"] == step // 10 * 10 - 10 * (step == 50)
