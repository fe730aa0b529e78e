"""Law 1: every row once, counted where it is read and where it is used; in evaluation too."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import saved

from god_ray import api
from god_ray.errors import SpecError, UserError
from god_ray.loop.request import Request
from god_ray.plan import epoch_checksum, worker_lanes
from laws.crew import DEBUG, TESTS, Crew, ledger

SpecOf = Callable[..., dict[str, Any]]
RowsOf = Callable[..., str]


def rows_by_epoch(records: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """epoch -> (rows, checksum), as measured."""
    found: dict[int, tuple[int, int]] = {}
    for record in records:
        rows, total = found.get(record["epoch"], (0, 0))
        found[record["epoch"]] = rows + record["num_rows"], (total + int(record["row_checksum"])) % 2**64
    return found


def ids_used(folder: Path, lanes: int, workers: int) -> Counter[int]:
    """What the losses of all workers saw in one attempt, less what was audited in its first step."""
    owned = {hi - lo for lo, hi in worker_lanes(lanes, workers)}
    assert len(owned) == 1, "choose sizes with even ranges, so that the audit's call can be told"
    files = list(folder.glob("*.jsonl"))
    assert len(files) == workers
    used: Counter[int] = Counter()
    for file in files:
        calls = [json.loads(line) for line in file.read_text().splitlines()]
        del calls[owned.copy().pop()]
        used.update(row for call in calls for row in call)
    return used


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_row_once_per_epoch(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, tmp_path: Path, workers: int, shuffle: str
) -> None:
    data = {"shuffle": shuffle, "window": 2}
    spec = spec_of("mlp", rows_of(75, 3, 10), batch_size=17, epochs=3, data=data, digest_every=1000)
    environ = {rank: {"RECORD_IDS": str(tmp_path)} for rank in range(workers)}
    result, _ = crew.train(spec, workers, environ=environ)
    assert rows_by_epoch(ledger(result)) == dict.fromkeys(range(3), (75, epoch_checksum(75)))
    assert ids_used(tmp_path, 4, workers) == dict.fromkeys(range(75), 3)


def test_every_row_once_with_a_resize_in_each_epoch(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, tmp_path: Path
) -> None:
    """Nothing is done twice when a run is resized in order: ids are counted over all attempts."""
    steps, sizes = [7, 16, 24], [2, 4, 1, 2]
    spec = spec_of("mlp", rows_of(160, 3, 10), epochs=3, digest_every=1000)
    used: Counter[int] = Counter()
    result = None
    for size, stop in zip(sizes, [*steps, None]):
        folder = tmp_path / f"{size}-{stop}"
        folder.mkdir()
        asks = [(stop - 1, Request("stop"))] if stop else []
        environ = {rank: {"RECORD_IDS": str(folder)} for rank in range(size)}
        if result is None:
            result, _ = crew.train(spec, size, asks=asks, environ=environ)
        else:
            result, _ = crew.resume(result, size, asks=asks, environ=environ)
        assert (result.state, result.step) == (("STOPPED", stop) if stop else ("SUCCEEDED", 30))
        used += ids_used(folder, 4, size)
    assert used == dict.fromkeys(range(160), 3)
    assert rows_by_epoch(ledger(result)) == dict.fromkeys(range(3), (160, epoch_checksum(160)))
    assert [r["num_workers"] for r in ledger(result)] == [2] * 7 + [4] * 9 + [1] * 8 + [2] * 6


def test_evaluation_counts_each_row_once(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Case 2.04: 21 rows; the count, and the accuracy to the last digit, with any number of workers."""
    evaluation = rows_of(21, seed=1)
    spec = spec_of("batch_norm", rows_of(70), epochs=2, data={"eval": evaluation})
    found = []
    for workers in (DEBUG, 1, 2, 3, 4):
        result, _ = crew.train({**spec, "name": f"{spec['name']}-{workers}"}, workers)
        found.append([r["eval"] for r in ledger(result) if "eval" in r])
        assert result.metrics == found[-1][-1]
    assert [e["num_rows"] for e in found[0]] == [21, 21]
    assert found[0] == found[1] == found[2] == found[3] == found[4]
    weights = [str(path) for path in saved.files(result.folder / "checkpoints", result.step, "model")]
    zoo = str(TESTS / "recipes" / "zoo.py")
    right = crew.call("laws.reference", "count_right", zoo, "batch_norm", weights, evaluation)
    assert found[0][-1]["accuracy"] == right / 21


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 100])
def test_evaluation_of_any_size(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, rows: int) -> None:
    """Fewer rows than lanes, than a batch, one more than a batch."""
    spec = spec_of("batch_norm", rows_of(32), steps=2, data={"eval": rows_of(rows, seed=1)})
    found = []
    for workers in (DEBUG, 3):
        result, _ = crew.train({**spec, "name": f"{spec['name']}-{workers}"}, workers)
        found.append(result.metrics)
    assert found[0]["num_rows"] == rows
    assert found[0] == found[1]


@pytest.mark.parametrize("workers", [DEBUG, 1, 2, 4])
def test_early_stopping_is_agreed(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, workers: int) -> None:
    """Case 2.06: worker 0's rows stop improving after evaluation 3, all together after 5."""
    spec = spec_of(
        "unused name",
        rows_of(70),
        recipe="early.py",
        epochs=9,
        eval={"every": 1},
        stop_when={"metric": "score", "mode": "max", "patience": 1},
        data={"eval": rows_of(22, seed=1)},
    )
    result, _ = crew.train(spec, workers)
    assert (result.state, result.step) == ("SUCCEEDED", 6)
    assert "stop_when" in result.reason
    scores = [r["eval"]["score"] for r in ledger(result)]
    assert scores == [1, 2, 3, 3.5, 4, 4]


def test_early_stopping_remembers_across_a_resume(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    spec = spec_of(
        "unused name",
        rows_of(70),
        recipe="early.py",
        epochs=9,
        eval={"every": 1},
        stop_when={"metric": "score", "mode": "max", "patience": 3},
        data={"eval": rows_of(22, seed=1)},
    )
    result, _ = crew.train(spec, 2, asks=[(6, Request("stop"))])
    assert (result.state, result.step) == ("STOPPED", 7)
    result, _ = crew.resume(result, 3)
    assert (result.state, result.step) == ("SUCCEEDED", 8), "evaluations 6, 7 and 8 were no better than 5"


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stop_from_outside_reaches_all_at_one_step(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, workers: int
) -> None:
    """Case 2.06, second half: only worker 0 reads the command."""
    result, attempts = crew.train(
        spec_of("dropout", rows_of(70), epochs=4), workers, asks=[(6, Request("stop"))]
    )
    assert (result.state, result.step, result.reason) == ("STOPPED", 7, "asked to stop")
    assert len(attempts.facts[0]) == workers
    assert len(ledger(result)) == 7


def test_the_global_batch_is_the_same_at_any_size(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Case 2.08: 100 rows a step with 4, 3 and 7 workers, and the weights of a run with one."""
    spec = spec_of("batch_norm", rows_of(400), batch_size=100, lanes=7, epochs=3, clip_norm=1.0)
    asks = [(3, Request("resize", 3)), (7, Request("resize", 7))]
    result, attempts = crew.train(spec, 4, asks=asks)
    assert [len(group) for group in attempts.facts] == [4, 3, 7]
    records = ledger(result)
    assert [r["num_workers"] for r in records] == [4] * 4 + [3] * 4 + [7] * 4
    assert [r["num_rows"] for r in records] == [100] * 12
    alone, _ = crew.train({**spec, "name": spec["name"] + "-alone"}, 1)
    for ours, theirs in zip(records, ledger(alone), strict=True):
        assert (ours["digest"], ours["grad_norm"]) == (theirs["digest"], theirs["grad_norm"])


def test_batches_depend_on_rows_only(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Case 2.01: 80 rows in blocks of 30 and 10, or of any other size, make 10 steps of 8 rows."""
    digests = set()
    for files, group in ((2, 30), (1, 7), (4, 80)):
        for shuffle in ("full", "window"):
            spec = spec_of(
                "mlp",
                rows_of(80, files, group),
                batch_size=8,
                epochs=1,
                data={"shuffle": shuffle, "window": 2},
            )
            result, _ = crew.train(spec, 2)
            assert [r["num_rows"] for r in ledger(result)] == [8] * 10
            if shuffle == "full":
                digests.add(result.digest)
    assert len(digests) == 1, "a permutation of all rows does not depend on how they are stored"


@pytest.mark.parametrize("workers", [2, 4])
def test_one_small_file(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, workers: int) -> None:
    """Case 2.02: 25 rows in one file."""
    spec = spec_of("mlp", rows_of(25), batch_size=8, epochs=1)
    result, attempts = crew.train(spec, workers)
    assert rows_by_epoch(ledger(result)) == {0: (25, epoch_checksum(25))}
    assert len(attempts.facts[0]) == workers


def test_too_few_rows_are_refused_before_anything_starts(
    spec_of: SpecOf, rows_of: RowsOf, crew: Crew
) -> None:
    """Case 2.02: 32 workers on 25 rows, 1 row, 0 rows: rows, workers and batch size are named."""
    many = {"workers": 32, "lanes": 32, "batch_size": 64, "epochs": 1}
    for rows, fields, words in (
        (25, many, ["25 rows", "batch_size is 64", "workers: 32"]),
        (1, {"workers": 2, "epochs": 1}, ["1 rows", "batch_size is 16", "workers: 2"]),
        (0, {"workers": 2, "epochs": 1}, ["there are no rows", "Fix"]),
    ):
        spec = spec_of("mlp", rows_of(rows), **fields)
        with pytest.raises(UserError) as caught:
            api.train(spec, debug=True)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert not (Path(spec["storage"]) / spec["name"]).exists()
    with pytest.raises(SpecError, match="lanes"):
        api.train(spec_of("mlp", rows_of(25), batch_size=16, workers=32, epochs=1), debug=True)


@pytest.mark.parametrize(("files", "group"), [(1, 4), (3, 1000)], ids=["40 row groups", "3 files"])
def test_no_worker_is_idle(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, files: int, group: int) -> None:
    """Case 2.07: one file with 40 row groups, or 3 files, and 2 workers: each reads half of the rows."""
    data = {"shuffle": "window", "window": 2}
    result, attempts = crew.train(
        spec_of("mlp", rows_of(160, files, group), epochs=1, data=data, digest_every=1000), 2
    )
    assert rows_by_epoch(ledger(result)) == {0: (160, epoch_checksum(160))}
    assert [f["counters"]["rows_by_worker"] for f in attempts.facts[0]] == [80, 80]
