"""`RowRandom`: a row's draws follow from (seed, epoch, row, call, element) alone, the same everywhere."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch

from god_ray.rowrandom import RowRandom, _log, _normal_quantile

GOLDEN = {
    "random": [[0.23595058917999268, 0.035305023193359375], [0.29954856634140015, 0.7251908183097839]],
    "normal": [[0.6931397318840027, -0.08254380524158478], [-0.2757290005683899, -1.936789870262146]],
    "integers": [[631928, 495205], [425551, 661915]],
}

DRAWS = {
    "random": lambda rng: rng.random(3),
    "normal": lambda rng: rng.normal(2, 2),
    "integers": lambda rng: rng.integers(-5, 1000, 4),
    "scalar": lambda rng: rng.random(),
}


def rng(rows: list[int] | range, seed: int = 7, epoch: int = 3) -> RowRandom:
    return RowRandom(seed, epoch, np.asarray(rows, dtype=np.int64))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_row_draws_the_same_alone_and_in_any_batch(draw) -> None:
    rows = [5, 0, 10**12, 17, 3]
    whole = draw(rng(rows))
    for place, row in enumerate(rows):
        assert torch.equal(draw(rng([row]))[0], whole[place])
    shuffled = [17, 5, 3, 10**12, 0]
    assert torch.equal(draw(rng(shuffled)), whole[[rows.index(row) for row in shuffled]])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_seed_epoch_row_and_call_each_matter(draw) -> None:
    first = rng(range(50))
    base, second_call = draw(first), draw(first)
    for other in (
        second_call,
        draw(rng(range(50), seed=8)),
        draw(rng(range(50), epoch=4)),
        draw(rng(range(50, 100))),
    ):
        assert (other == base).float().mean() < 0.05


def test_seed_and_epoch_do_not_stand_in_for_each_other() -> None:
    assert not torch.equal(rng([1], seed=1, epoch=2).random(4), rng([1], seed=2, epoch=1).random(4))
    assert not torch.equal(rng([1], seed=0, epoch=1).random(4), rng([0], seed=0, epoch=2).random(4))


def test_shapes_and_types() -> None:
    some = rng(range(6))
    assert (some.random().shape, some.random().dtype) == ((6,), torch.float32)
    assert (some.normal(2, 3).shape, some.normal().dtype) == ((6, 2, 3), torch.float32)
    assert (some.integers(0, 2, 5).shape, some.integers(0, 2).dtype) == ((6, 5), torch.int64)
    assert rng([]).random(3).shape == (0, 3)


def test_the_first_draws_are_known() -> None:
    """Golden: these values are part of every result that uses `transform`."""
    some = rng([0, 1])
    assert some.random(2).tolist() == GOLDEN["random"]
    assert some.normal(2).tolist() == GOLDEN["normal"]
    assert some.integers(0, 1_000_000, 2).tolist() == GOLDEN["integers"]


def test_uniform_draws_are_uniform() -> None:
    draws = rng(range(20_000)).random(10).double()
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 1 / 2) < 0.003  # 200,000 draws: five standard errors
    assert abs(draws.var() - 1 / 12) < 0.001
    between_rows = np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]
    between_elements = np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]
    assert max(abs(between_rows), abs(between_elements)) < 0.035


def test_normal_draws_are_normal() -> None:
    draws = rng(range(20_000)).normal(10).double()
    assert abs(draws.mean()) < 0.012
    assert abs(draws.var() - 1) < 0.016
    assert abs((draws.abs() > 1.959964).double().mean() - 0.05) < 0.0025
    assert abs((draws**4).mean() - 3) < 0.12


def test_the_normal_quantile_agrees_with_the_standard_library() -> None:
    p = np.array([2.0**-53, 1e-12, 1e-6, 0.01, 0.0749, 0.075, 0.3, 0.5, 0.8, 0.9251, 1 - 1e-9])
    expected = np.array([NormalDist().inv_cdf(float(x)) for x in p])
    np.testing.assert_allclose(_normal_quantile(p), expected, rtol=3e-7, atol=1e-12)


def test_the_logarithm_agrees_with_numpy() -> None:
    x = np.concatenate([2.0 ** -np.arange(54.0), np.linspace(1e-9, 1, 1001)])
    np.testing.assert_allclose(_log(x), np.log(x), rtol=1e-14, atol=1e-16)


def test_integers_cover_their_range_evenly() -> None:
    counts = np.bincount(rng(range(20_000)).integers(10, 20, 5).flatten().numpy() - 10, minlength=10)
    assert counts.sum() == 100_000
    assert abs(counts - 10_000).max() < 500  # five standard deviations
    assert rng(range(100)).integers(4, 5).unique().tolist() == [4]
    wide = rng(range(1000)).integers(0, 2**32)
    assert wide.min() >= 0
    assert 2**31 < wide.max() < 2**32


@pytest.mark.parametrize(("low", "high"), [(3, 3), (3, 2), (0, 2**32 + 1)])
def test_impossible_ranges_are_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="high - low must be between 1"):
        rng([0]).integers(low, high)


def test_seeds_of_any_size_and_sign() -> None:
    values = {rng([0], seed=seed).random().item() for seed in (0, 1, -1, 2**63, 2**64 - 2)}
    assert len(values) == 5
