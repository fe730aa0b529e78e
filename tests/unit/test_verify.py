"""`verify` finds what it is there to find, by name, and nothing where nothing is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import saved
from small_runs import STEPS, ledger_files, project, rewrite, trained, write_rows

from god_ray.monitor.ledger import Ledger
from god_ray.runtime.findings import MAX_PER_CHECK, Findings
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.verify import verify


def said(found: Findings) -> list[str]:
    return [f"{difference.check}: {difference.text}" for difference in found.differences]


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


# ---- what is right


def test_a_finished_run_holds(finished_run: RunFolder) -> None:
    found = verify(finished_run)
    assert said(found) == []
    assert found.ok
    assert found.skipped == []
    assert found.held == [
        f"{STEPS} steps published, each once, without gaps",
        f"{STEPS} steps with the rows of the plan",
        "each of 50 rows was used once in 3 whole epochs, by the measured checksums",
        "3 checkpoints intact, the digests of 3 equal to the ledger's",
    ]


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize(("lanes", "batch_size"), [(1, 9), (3, 7), (4, 10)])
def test_any_plan_holds(shuffle: str, lanes: int, batch_size: int, tmp_path: Path) -> None:
    """Batches that lanes and rows do not divide; windows that are cut by lanes; a tail that joins."""
    spec = project(tmp_path, data={"train": "train.parquet", "shuffle": shuffle, "window": 2}, checkpoint={})
    run = trained(spec, tmp_path / "runs", "r", lanes=lanes, batch_size=batch_size, workers=1, epochs=2)
    found = verify(run)
    assert said(found) == []
    assert any("2 whole epochs" in text for text in found.held)


def test_a_run_that_goes_on_holds_as_far_as_it_came(small_run: RunFolder) -> None:
    """Half an epoch, an unfinished line, a checkpoint that is being written."""
    first, *rest = ledger_files(small_run)
    records = lines_of(first) + [line for path in rest for line in lines_of(path)]
    for path in (first, *rest):
        path.unlink()
    (small_run.ledger / "live.jsonl").write_text("".join(records[:10]) + records[10][:40])
    for path in small_run.checkpoints.iterdir():
        path.rename(path.with_name(f"{path.name}.1.tmp"))
    small_run.update(state="RUNNING", durable_step=None)
    found = verify(small_run)
    assert said(found) == []
    assert "10 steps published, each once, without gaps" in found.held
    assert any("1 whole epoch," in text for text in found.held)
    assert found.skipped == ["there are no checkpoints"]


def test_a_run_without_steps_has_nothing_to_hold(small_run: RunFolder) -> None:
    shutil.rmtree(small_run.ledger)
    shutil.rmtree(small_run.checkpoints)
    small_run.update(state="STARTING", durable_step=None)
    found = verify(small_run)
    assert found.ok
    assert found.held == []
    assert "no step has been published yet" in found.skipped


# ---- what is wrong


def repeat_a_line(run: RunFolder) -> None:
    path = ledger_files(run)[0]
    lines = lines_of(path)
    path.write_text("".join([*lines[:2], lines[1], *lines[2:]]))


def drop_a_line(run: RunFolder) -> None:
    path = ledger_files(run)[0]
    lines = lines_of(path)
    path.write_text("".join(lines[:1] + lines[2:]))


def damage_a_line(run: RunFolder) -> None:
    path = ledger_files(run)[0]
    lines = lines_of(path)
    path.write_text("".join([lines[0], '{"step": 2, "epo\n', *lines[2:]]))


def cut_the_end(run: RunFolder) -> None:
    path = ledger_files(run)[-1]
    path.write_text("".join(lines_of(path)[:-1]))


def lose_a_segment(run: RunFolder) -> None:
    ledger_files(run)[1].unlink()


def other_rows(run: RunFolder) -> None:
    rewrite(run, 9, row_checksum="1")


def fewer_rows(run: RunFolder) -> None:
    rewrite(run, 9, num_rows=7)


def another_place(run: RunFolder) -> None:
    rewrite(run, 9, step_in_epoch=3)


def two_steps_swap_rows(run: RunFolder) -> None:
    """The sum over the epoch is right, the plan is not."""
    records = {record["step"]: record for record in Ledger.read(run.ledger)}
    rewrite(run, 9, row_checksum=records[10]["row_checksum"])
    rewrite(run, 10, row_checksum=records[9]["row_checksum"])


def another_digest(run: RunFolder) -> None:
    rewrite(run, STEPS, digest="0" * 32)


def an_evaluation_of_fewer_rows(run: RunFolder) -> None:
    rewrite(run, 7, eval={"loss": 1.0, "num_rows": 12})


def flip_a_bit_of_a_checkpoint(run: RunFolder) -> None:
    path = saved.files(run.checkpoints, STEPS, "optimizer")[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def lose_a_file_of_a_checkpoint(run: RunFolder) -> None:
    saved.files(run.checkpoints, STEPS, "state")[0].unlink()


def claim_success_too_early(run: RunFolder) -> None:
    run.update(num_steps=2 * STEPS)


@pytest.mark.parametrize(
    ("damage", "check", "text"),
    [
        (repeat_a_line, "ledger", "step 2 stands again in 00000001-"),
        (drop_a_line, "ledger", "step 2 is missing: 00000001-"),
        (damage_a_line, "ledger", "line 2 is no record"),
        (cut_the_end, "ledger", f"the ledger ends at step {STEPS - 1}, but"),
        (lose_a_segment, "ledger", "are missing: "),
        (other_rows, "rows", "step 9 has row_checksum 1, planned "),
        (other_rows, "epochs", "epoch 2 (steps 8 to 14) did not use each row once: checksum "),
        (fewer_rows, "rows", "step 9 has num_rows 7, planned 8"),
        (fewer_rows, "epochs", "epoch 2 (steps 8 to 14) used 49 rows, the data set has 50"),
        (another_place, "rows", "step 9 has step_in_epoch 3, planned 1"),
        (two_steps_swap_rows, "rows", "step 10 has row_checksum "),
        (another_digest, "checkpoints", f"step-{STEPS:08d} has digest "),
        (another_digest, "ending", "the run ended with digest "),
        (an_evaluation_of_fewer_rows, "evaluation", "step 7 evaluated 12 rows, the evaluation set has 13"),
        (
            flip_a_bit_of_a_checkpoint,
            "checkpoints",
            f"step-{STEPS:08d}: the content of optimizer-1of1.1.safetensors",
        ),
        (lose_a_file_of_a_checkpoint, "checkpoints", f"step-{STEPS:08d}: state.1.json is missing"),
        (claim_success_too_early, "ending", f"SUCCEEDED with {STEPS} of {2 * STEPS} steps published"),
        (cut_the_end, "checkpoints", f"step-{STEPS:08d} is newer than the ledger"),
    ],
)
def test_a_damage_is_named(
    damage: Callable[[RunFolder], None], check: str, text: str, small_run: RunFolder
) -> None:
    damage(small_run)
    found = verify(small_run)
    assert not found.ok
    assert any(line.startswith(f"{check}: ") and text in line for line in said(found)), said(found)


@pytest.mark.parametrize("gone", ["checkpoints/step-*", "checkpoints"])
def test_a_saved_checkpoint_that_is_gone_is_named(gone: str, small_run: RunFolder) -> None:
    """Older ones that are still there do not make up for it."""
    for path in sorted(small_run.path.glob(gone))[-1:]:
        shutil.rmtree(path)
    assert said(verify(small_run)) == [
        "checkpoints: step-00000021 was saved, and it is gone, without a newer one"
    ]


def test_swapped_rows_are_right_in_sum(small_run: RunFolder) -> None:
    two_steps_swap_rows(small_run)
    found = verify(small_run)
    assert found.counts == {"rows": 2}
    assert any("whole epoch" in text for text in found.held)


def test_a_difference_in_every_step_is_cut_short(small_run: RunFolder) -> None:
    for step in range(1, STEPS + 1):
        rewrite(small_run, step, row_checksum="1")
    found = verify(small_run)
    assert found.counts["rows"] == STEPS
    assert len([d for d in found.differences if d.check == "rows"]) == MAX_PER_CHECK


# ---- the data set


@pytest.mark.parametrize(("shuffle", "known"), [("full", True), ("window", False)])
def test_data_that_is_gone_or_changed_is_a_difference(shuffle: str, known: bool, tmp_path: Path) -> None:
    spec = project(tmp_path, data={"train": "train.parquet", "shuffle": shuffle}, checkpoint={})
    run = trained(spec, tmp_path / "runs", "r", epochs=1)
    write_rows(tmp_path / "train.parquet", 51)
    found = verify(run)
    assert [d.check for d in found.differences] == ["data"]
    assert "data.train has changed since the run began: now 51 rows" in said(found)[0]
    assert any("whole epoch" in text for text in found.held), "the sum needs no plan"
    assert any("7 steps with the rows" in text for text in found.held) == known
    (tmp_path / "train.parquet").unlink()
    found = verify(run)
    assert [d.check for d in found.differences] == ["data"]
    assert "no data there" in said(found)[0]


# ---- against another run


def copy_of(run: RunFolder, name: str) -> RunFolder:
    return RunFolder(shutil.copytree(run.path, run.path.parent / name))


def test_a_run_is_equal_to_itself(small_run: RunFolder) -> None:
    found = verify(small_run, copy_of(small_run, "twin"))
    assert found.ok
    digests = sum("digest" in record for record in Ledger.read(small_run.ledger))
    assert digests > 4
    assert found.held[-1] == f"{STEPS} steps in common with twin: equal, {digests} digests among them"


def test_a_shorter_run_is_compared_as_far_as_it_goes(small_run: RunFolder, small_spec: Path) -> None:
    other = trained(small_spec, small_run.path.parent, "short", epochs=2)
    found = verify(small_run, other)
    assert said(found) == []
    assert "14 steps in common with short" in found.held[-1]
    assert found.skipped == ["7 steps that only one of done and short has"]


def test_the_first_difference_is_named_with_what_may_explain_it(
    small_run: RunFolder, small_spec: Path
) -> None:
    other = trained(small_spec, small_run.path.parent, "other", config={"lr": 0.02})
    found = verify(small_run, other)
    (text,) = said(found)
    assert text.startswith("against: step 1: lr is 0.01 in done and 0.02 in other")
    assert "config.lr (None, 0.02)" in text


@pytest.mark.parametrize("key", ["loss", "row_checksum", "digest", "eval", "grad_norm"])
def test_each_published_value_is_compared(key: str, small_run: RunFolder) -> None:
    other = copy_of(small_run, "other")
    value = {"loss": 1e-9, "row_checksum": "5", "digest": "f" * 32, "eval": {"loss": 0, "num_rows": 13}}
    rewrite(other, 7, **{key: value.get(key, 3.0)})
    found = verify(small_run, other)
    assert any(line.startswith(f"against: step 7: {key} is ") for line in said(found)), said(found)


def test_circumstances_are_not_compared(small_run: RunFolder) -> None:
    other = copy_of(small_run, "other")
    rewrite(other, 7, timings={"step_s": 9.0}, generation=5, num_workers=4, at=1.0)
    assert verify(small_run, other).ok


def relaxed(run: RunFolder) -> RunFolder:
    spec = run.read()["spec"]
    run.update(spec=spec | {"determinism": spec["determinism"] | {"mode": "relaxed"}})
    return run


def test_relaxed_runs_agree_on_rows_exactly_and_on_the_loss_nearly(small_run: RunFolder) -> None:
    other = relaxed(copy_of(small_run, "other"))
    loss = next(iter(Ledger.read(small_run.ledger, 9)))["loss"]
    rewrite(other, 9, loss=loss * 1.0005, digest="0" * 32, grad_norm=7.0)
    found = verify(small_run, other)
    assert said(found) == []
    assert found.held[-1] == f"{STEPS} steps in common with other: rows equal, losses within 0.001"
    rewrite(other, 9, loss=loss * 1.002)
    assert said(verify(small_run, other))[0].startswith("against: step 9: loss is ")
    rewrite(other, 8, row_checksum="3")
    assert said(verify(small_run, other))[0].startswith("against: step 8: row_checksum is ")


def test_a_relaxed_run_may_replay_to_other_bits(small_run: RunFolder) -> None:
    rewrite(relaxed(small_run), STEPS, digest=None)
    rewrite(small_run, STEPS - 1, digest="0" * 32)
    assert not [line for line in said(verify(small_run)) if line.startswith("checkpoints")]


def test_runs_without_a_common_step_are_not_called_equal(small_run: RunFolder) -> None:
    other = copy_of(small_run, "other")
    shutil.rmtree(other.ledger)
    (text,) = said(verify(small_run, other))
    assert text == "against: done and other have no step in common"


def test_a_damaged_other_ledger_is_named(small_run: RunFolder) -> None:
    other = copy_of(small_run, "other")
    drop_a_line(other)
    assert said(verify(small_run, other)) == [
        "against: the ledgers cannot be compared: the ledger under "
        f"{other.ledger} lacks step 2, {ledger_files(other)[0].name} goes on with step 3"
    ]


def test_a_nan_is_equal_to_a_nan(small_run: RunFolder) -> None:
    other = relaxed(copy_of(small_run, "other"))
    for run in (small_run, other):
        rewrite(run, 9, loss="NaN")
    assert verify(small_run, other).ok
    assert json.loads(lines_of(ledger_files(other)[2])[0])["step"] == 9
