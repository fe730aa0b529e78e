"""A keyed permutation: the only randomness of the data order.

In: a length and a key of whole numbers. Out: a permutation that is the same on any machine, process and
numpy. Must not use `numpy.random.Generator`: numpy keeps the streams of `SeedSequence` and `Philox` for ever,
but may change what Generator methods make of them (NEP 19). A failure shows in the golden orders of
tests/unit/test_plan_order.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def permutation(length: int, *key: int) -> NDArray[np.int64]:
    """The numbers 0 .. length-1 in the order of their Philox words, keyed by `SeedSequence(key)`.

    Each word's low bits carry the number itself: all words differ, so every correct sort gives the same
    result, and sorting the words in place needs no second array (8 bytes per element at the peak, twice).
    """
    if length < 2:
        return np.arange(length, dtype=np.int64)
    words: NDArray[np.uint64] = np.random.Philox(np.random.SeedSequence(key)).random_raw(length)
    low = np.uint64((1 << (length - 1).bit_length()) - 1)
    words &= ~low
    words |= np.arange(length, dtype=np.uint64)
    words.sort()
    words &= low
    return words.view(np.int64)
