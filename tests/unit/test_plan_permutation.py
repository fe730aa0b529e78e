"""The keyed permutation: defined by raw Philox words alone, so no version of numpy can change an order."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from god_ray.plan.permutation import permutation

keys = st.lists(st.integers(0, 2**64), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.integers(0, 3000), keys)
def test_it_is_the_order_of_the_words(length: int, key: list[int]) -> None:
    """By the definition, in plain integers: sorted by the word's high bits, ties by number."""
    words = np.random.Philox(np.random.SeedSequence(key)).random_raw(length).tolist()
    low = max(length - 1, 0).bit_length()
    expected = sorted(range(length), key=lambda number: (words[number] >> low, number))
    assert permutation(length, *key).tolist() == expected


@pytest.mark.parametrize("length", [0, 1, 2, 255, 256, 257, 100_000])
def test_each_number_is_there_once(length: int) -> None:
    order = permutation(length, 1, 2, 3)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(length))


def test_words_are_on_file() -> None:
    assert permutation(10, 1, 2, 3).tolist() == [1, 8, 2, 4, 6, 5, 0, 9, 7, 3]


def test_all_orders_of_four_are_about_equally_frequent() -> None:
    counts = Counter(tuple(permutation(4, 0, key).tolist()) for key in range(4800))
    assert set(counts) == set(permutations(range(4)))
    chi_square = sum((count - 200) ** 2 / 200 for count in counts.values())
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001; the keys are fixed, so this never flickers
