"""Randomness that belongs to a row: the `rng` a recipe's `transform(batch, rng)` receives.

In: (seed, epoch) and the global number of each row of the batch. Out: tensors of draws, one line per row.
A draw is a pure function of (seed, epoch, row, which call, which element), so it never depends on the batch,
the lane or the worker the row happens to be in. Only integer operations and correctly rounded float ones
(+ - * / sqrt) are used: the same bits on every processor. Knows nothing of recipes, plans or readers.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]

# SplitMix64: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", 2014.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class RowRandom:
    """Draws for the rows of one batch. Every method returns a CPU tensor of shape `[num_rows, *shape]`.

    Calls are numbered: call the methods in the same order for every batch. A transform that draws only for
    some batches (`if batch["x"].max() > 1: rng.random()`) would tie a row's draws to its neighbours.
    """

    def __init__(self, seed: int, epoch: int, rows: NDArray[np.int64]) -> None:
        """`rows`: int64 `[num_rows]`, the global row numbers, in the order of the batch."""
        self.num_rows = len(rows)
        key = _mix(_mix(_word(seed)) + _word(epoch))
        self._keys: U64 = _mix(np.asarray(rows).astype(np.uint64) + key)
        self._num_calls = 0

    def random(self, *shape: int) -> torch.Tensor:
        """Uniform in [0, 1), float32, in steps of 2**-24."""
        fractions = (self._words(shape) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return torch.from_numpy(fractions)

    def normal(self, *shape: int) -> torch.Tensor:
        """Standard normal, float32, through the inverse distribution function."""
        # 52 bits plus a half: symmetric, and never 0 or 1.
        p = ((self._words(shape) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return torch.from_numpy(_normal_quantile(p).astype(np.float32))

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Uniform in [low, high), int64. Ranges up to 2**32; the bias is below range / 2**32.

        Raises ValueError if the range is empty or wider than 2**32.
        """
        span = high - low
        if not 1 <= span <= 2**32:
            raise ValueError(f"integers({low}, {high}): high - low must be between 1 and 2**32")
        scaled = ((self._words(shape) >> np.uint64(32)) * np.uint64(span)) >> np.uint64(32)
        return torch.from_numpy(scaled.astype(np.int64) + np.int64(low))

    def _words(self, shape: tuple[int, ...]) -> U64:
        """64 fresh random bits per row and element: uint64 `[num_rows, *shape]`."""
        size = math.prod(shape)
        state = _mix(self._keys + _word(self._num_calls))[:, None]
        self._num_calls += 1
        counters = np.arange(1, size + 1, dtype=np.uint64) * _GOLDEN
        return _mix(state + counters).reshape(self.num_rows, *shape)


def _word(value: int) -> U64:
    # An array, not a scalar: numpy warns when a uint64 scalar wraps around, and wrapping is the point here.
    return np.array([value % 2**64], dtype=np.uint64)


def _mix(state: U64) -> U64:
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


# M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution", 1988, PPND7 (error
# about 1e-7): rational functions of p - 1/2 in the middle, of sqrt(-log(tail)) outside. Highest power first.
_MIDDLE = (
    (59.109374720, 159.29113202, 50.434271938, 3.3871327179),
    (67.187563600, 78.757757664, 17.895169469, 1.0),
)
_TAIL = (
    (0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777),
    (0.12021132975, 0.73700164250, 1.0),
)
_FAR_TAIL = (
    (0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150),
    (0.012258202635, 0.24197894225, 1.0),
)


def _normal_quantile(p: F64) -> F64:
    centred = p - 0.5
    tail = np.minimum(p, 1.0 - p)
    r = np.sqrt(-_log(tail))
    outside = np.where(r <= 5.0, _ratio(_TAIL, r - 1.6), _ratio(_FAR_TAIL, r - 5.0))
    inside = centred * _ratio(_MIDDLE, 0.180625 - centred * centred)
    return np.where(np.abs(centred) <= 0.425, inside, np.copysign(outside, centred))


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: F64) -> F64:
    top, bottom = polynomials
    return _polynomial(top, x) / _polynomial(bottom, x)


def _polynomial(coefficients: tuple[float, ...], x: F64) -> F64:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def _log(x: F64) -> F64:
    """Natural logarithm. Not np.log: that one has other last bits on other processors."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    exponent = exponent - low
    s = (mantissa - 1.0) / (mantissa + 1.0)  # log m = 2 artanh s, |s| < 0.172
    odd = tuple(1.0 / k for k in range(19, 0, -2))
    return exponent * math.log(2.0) + 2.0 * s * _polynomial(odd, s * s)
