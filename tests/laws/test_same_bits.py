"""Law 2: the same bits after every step, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved
import torch

from laws.crew import DEBUG, TESTS, Crew, happened, ledger

SpecOf = Callable[..., dict[str, Any]]
RowsOf = Callable[..., str]


def what_happened(
    crew: Crew, spec: dict[str, Any], workers: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(ledger without circumstances, facts of each worker) of a run that must succeed."""
    name = f"{spec['name']}-w{workers}"
    result, attempts = crew.train({**spec, "name": name}, workers)
    assert result.state == "SUCCEEDED", result.failure
    assert {r["num_workers"] for r in ledger(result)} == {max(workers, 1)}
    records = happened(result)
    assert records[-1]["digest"] == result.digest
    return records, attempts.facts[0]


def same_for(crew: Crew, spec: dict[str, Any], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The ledger that all these sizes, and --debug, have in common; facts are checked by the caller."""
    expected, _ = what_happened(crew, spec, DEBUG)
    every = spec["determinism"]["digest_every"]
    for record in expected:
        assert ("digest" in record) == (record["step"] % every == 0 or record is expected[-1])
    assert len({r.get("digest") for r in expected if "digest" in r}) > 1, "nothing was trained"
    for workers in sizes:
        seen, facts = what_happened(crew, spec, workers)
        assert len(facts) == max(workers, 1)
        for ours, theirs in zip(expected, seen, strict=True):
            assert theirs == ours, f"{workers} workers, step {ours['step']}"
    return expected


MODELS: dict[str, dict[str, Any]] = {
    "dropout": {"model": "dropout"},
    "batch_norm": {"model": "batch_norm"},
    "unused": {"model": "unused"},
    "unused, momentum": {"model": "unused", "optimizer": "sgd"},
    "buffers": {"model": "buffers", "optimizer": "sgd"},
    "masked": {"model": "dropout", "masked": True},
    "mixed dtypes": {"model": "mixed"},
    "tied": {"model": "tied"},
    "parameter groups": {"model": "tied", "optimizer": "groups", "schedule": "one cycle"},
    "transformer": {"model": "transformer"},
    "conv": {"model": "conv"},
    "transform": {"model": "batch_norm", "transform": True},
    "optimizer without fused": {"model": "mlp", "optimizer": "rmsprop", "schedule": False},
}


@pytest.mark.parametrize("name", MODELS)
def test_four_lanes(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, name: str) -> None:
    """1, 2, 3, 4 workers and --debug; lanes don't divide the batch, the tail leaves lanes without rows."""
    spec = spec_of(MODELS[name], rows_of(75), batch_size=17, epochs=2, clip_norm=0.5)
    records = same_for(crew, spec, (1, 2, 3, 4))
    assert [r["num_rows"] for r in records] == [17, 17, 17, 17, 7] * 2
    assert all(r["grad_norm"] > 0 for r in records)


SEVEN = {
    "dropout": (95, [23, 23, 23, 23, 3]),
    "buffers": (95, [23, 23, 23, 23, 3]),
    "unused": (96, [23, 23, 23, 27]),
    "masked": (98, [23, 23, 23, 23, 6]),
}


@pytest.mark.parametrize("name", SEVEN)
def test_seven_lanes(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, name: str) -> None:
    """1, 3, 5 workers: ranges whose subtrees differ in number. Digests every third step: audits are rare."""
    rows, expected = SEVEN[name]
    spec = spec_of(MODELS[name], rows_of(rows, files=3), batch_size=23, lanes=7, epochs=2, digest_every=3)
    records = same_for(crew, spec, (1, 3, 5))
    assert [r["num_rows"] for r in records] == expected * 2


SHAPES = {
    "divides": (64, 16, [16, 16, 16, 16]),
    "tail fills one lane": (68, 16, [16, 16, 16, 16, 4]),
    "tail leaves workers without rows": (66, 16, [16, 16, 16, 16, 2]),
    "tail of one row joins": (65, 16, [16, 16, 16, 17]),
    "tail whose last leaf would be one row joins": (69, 16, [16, 16, 16, 21]),
    "lanes do not divide the batch": (63, 18, [18, 18, 18, 9]),
    "the same, and the tail joins": (64, 18, [18, 18, 28]),
    "one step an epoch": (16, 16, [16]),
    "one step with what is left": (17, 16, [17]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_batches_and_tails(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, name: str) -> None:
    num_rows, batch_size, expected = SHAPES[name]
    spec = spec_of("batch_norm", rows_of(num_rows), batch_size=batch_size, epochs=3, digest_every=2)
    assert [r["num_rows"] for r in same_for(crew, spec, (2, 3, 4))] == expected * 3


def test_tails_of_one_row(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Where the spec allows them, the remainder is a step of its own, down to a single row."""
    data = {"min_leaf_rows": 1}
    spec = spec_of("mlp", rows_of(65), epochs=3, data=data, clip_norm=0.5)
    assert [r["num_rows"] for r in same_for(crew, spec, (2, 3, 4))] == [16, 16, 16, 16, 1] * 3


def test_mixed_precision(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """bf16-mixed, on the CPU."""
    data = {"eval": rows_of(21, seed=1)}
    spec = spec_of("batch_norm", rows_of(70), epochs=2, precision="bf16-mixed", data=data)
    mixed = same_for(crew, spec, (1, 3))
    assert (
        mixed[-1]["digest"] != same_for(crew, {**spec, "precision": "fp32", "name": "fp32"}, ())[-1]["digest"]
    )


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
def test_orders(crew: Crew, spec_of: SpecOf, rows_of: RowsOf, shuffle: str) -> None:
    """Several files, windows over fragments of 7 rows; the run ends inside an epoch."""
    data = {"shuffle": shuffle, "window": 3}
    spec = spec_of(
        {"model": "dropout", "transform": True}, rows_of(70, 4, 7), data=data, steps=11, digest_every=2
    )
    records = same_for(crew, spec, (1, 2, 3, 4))
    assert [r["epoch"] for r in records] == [0] * 5 + [1] * 5 + [2]
    in_epoch = [[r["row_checksum"] for r in records if r["epoch"] == e][:4] for e in (0, 1)]
    assert (in_epoch[0] == in_epoch[1]) == (shuffle == "none"), "each epoch has an order of its own"


@pytest.mark.parametrize(("lanes", "sizes"), [(4, (2, 3, 4)), (7, (3, 5)), (10, (2,))])
def test_sliced_exchange(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, lanes: int, sizes: tuple[int, ...]
) -> None:
    """Above 1 MB the vector is cut into slices, one per worker: other messages, the same sums.

    Not between two workers with one subtree each: whole vectors are as many bytes there.
    """
    spec = spec_of("large", rows_of(70), batch_size=20, lanes=lanes, steps=5, clip_norm=0.5, digest_every=2)
    expected, facts = what_happened(crew, spec, DEBUG)
    assert not facts[0]["sliced"]
    assert expected[3]["num_rows"] == 10, "some workers have no rows in that step"
    for workers in sizes:
        seen, facts = what_happened(crew, spec, workers)
        assert [f["sliced"] for f in facts] == [workers > 2 or lanes == 10] * workers
        assert seen == expected, workers


def test_evaluation_does_not_disturb(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Evaluation between steps changes nothing in training, BatchNorm included."""
    plain = same_for(crew, spec_of("batch_norm", rows_of(70), epochs=2), (2,))
    data = {"eval": rows_of(21, seed=1)}
    evaluated = same_for(
        crew, spec_of("batch_norm", rows_of(70), epochs=2, data=data, eval={"every": 2}), (1, 3)
    )
    assert [r.pop("eval", None) is not None for r in evaluated] == [
        r["step"] in (2, 4, 6, 8, 10) for r in plain
    ]
    assert evaluated == plain


def test_constant_buffers_keep_their_bits(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """Averaging equal floats would change some of them."""
    spec = spec_of({"model": "buffers"}, rows_of(95), batch_size=23, lanes=7, epochs=1)
    result, _ = crew.train(spec, 5)
    found = saved.tensors(result.folder / "checkpoints", result.step)
    assert torch.equal(found["constant"], torch.linspace(0.1, 0.9, 16))
    assert found["order"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["seen_any"].item() is True
    assert found["norm.num_batches_tracked"].item() == result.step
    assert found["rows_seen"].item() == 3 * result.step, (
        "not averaged: the first lane's, which has 3 rows a step"
    )


def test_a_parameter_without_gradient_is_left_alone(crew: Crew, spec_of: SpecOf, rows_of: RowsOf) -> None:
    """None in all leaves is None, not zero: weight decay and momentum must not touch it."""
    spec = spec_of("unused", rows_of(75), batch_size=17, epochs=2)
    result, _ = crew.train(spec, 3)
    found = saved.tensors(result.folder / "checkpoints", result.step)
    assert found["never"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("masked", [False, True], ids=["mean", "sum and weight"])
@pytest.mark.parametrize("lanes", [4, 7])
def test_against_a_plain_reference(
    crew: Crew, spec_of: SpecOf, rows_of: RowsOf, tmp_path: Path, lanes: int, masked: bool
) -> None:
    """Every gradient and the final weights, bit for bit, as a loop of plain torch computes them."""
    folder, batch_size = rows_of(75, files=2), 17 if lanes == 4 else 16
    config = {"model": "plain", "optimizer": "sgd", "schedule": False, "masked": masked}
    zoo = str(TESTS / "recipes" / "zoo.py")
    gradients, weights = crew.call("laws.reference", "train", zoo, folder, batch_size, lanes, 2, masked)
    for workers in (1, 3):
        record = tmp_path / str(workers)
        record.mkdir()
        spec = spec_of(
            {**config, "record": str(record)},
            folder,
            batch_size=batch_size,
            lanes=lanes,
            epochs=2,
            data={"shuffle": "none"},
        )
        result, _ = crew.train(spec, workers)
        assert result.step == len(gradients) == 10
        for step, expected in enumerate(gradients):
            files = sorted(record.glob(f"{step}-*.npz"))
            assert len(files) == workers
            for file in files:
                with np.load(file) as seen:
                    for name, reference in zip(seen.files, expected, strict=True):
                        assert seen[name].tobytes() == reference.tobytes(), (workers, step, name)
        found = saved.tensors(result.folder / "checkpoints", result.step)
        assert [found[n].numpy().tobytes() for n in seen.files] == [w.tobytes() for w in weights]
