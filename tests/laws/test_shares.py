"""Every worker writes its share of a checkpoint: what becomes of the run if one of them cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import saved

from god_ray.errors import CheckpointError
from laws.crew import Crew, Member, Watch, ledger
from laws.disturbed import RowsOf, SpecOf, same, undisturbed


def blocking(spec: dict[str, Any], step: int, name: str) -> Watch:
    """Just before that step's save a folder lies where a worker's file would go: an error of the disk."""

    def on_step(_rank: int, committed: int, _members: list[Member]) -> None:
        if committed == step - 1:
            place = Path(spec["storage"], spec["name"], "checkpoints", f"step-{step:08d}", name)
            place.mkdir(parents=True, exist_ok=True)

    return Watch(on_step)


@pytest.mark.parametrize("step", [12, 24], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_worker_that_cannot_write_its_share_ends_the_run_and_is_told(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, rank: int, step: int
) -> None:
    """No worker waits for it, the first cause is its own error, and the checkpoint before is whole."""
    spec = spec_of("batch_norm", rows_of(95), epochs=4, checkpoint={"every_s": None, "every_steps": 4})
    watch = blocking(spec, step, f"model-{rank + 1}of3.1.safetensors")
    result, _ = crew.train(spec, 3, watch=watch)
    assert result.state == "FAILED"
    assert isinstance(result.failure, CheckpointError)
    assert f"step-{step:08d} could not be written" in result.failure.what
    assert "Is a directory" in result.failure.why
    assert "needed about" in result.failure.why
    assert [r["step"] for r in ledger(result)] == list(range(1, len(ledger(result)) + 1))
    saved.files(result.folder / "checkpoints", step, f"model-{rank + 1}of3")[0].rmdir()
    result, attempts = crew.resume(result, 2)
    assert attempts.facts[0][0]["resumed_at"] == step - 4
    same(result, undisturbed(crew, spec))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_as_many_shares_as_workers(
    crew: Crew, spec_of: SpecOf, rows_of: Callable[..., str], workers: int
) -> None:
    result, _ = crew.train(spec_of("batch_norm", rows_of(95), epochs=1), workers)
    assert result.state == "SUCCEEDED"
    checkpoints = result.folder / "checkpoints"
    for part in ("model", "optimizer"):
        found = [path.name for path in saved.files(checkpoints, result.step, part)]
        assert found == [f"{part}-{n}of{workers}.1.safetensors" for n in range(1, workers + 1)]
    assert saved.files(checkpoints, result.step, "share") == []
