"""Row accounting: a hash of a row's global number, and sums of hashes, so that "each row once" is measured.

In: global row numbers. Out: 64-bit hashes and their sum mod 2**64 (not xor: a row used twice must not
cancel). Must not know the order of the rows: the sum over an epoch needs no plan. A lost, repeated or foreign
row shows as a checksum in the ledger that `god-ray verify` names.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CHUNK_ROWS = 1 << 18  # 2 MiB of hashes: stays in the cache


def row_hash(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood 2014; Vigna's constants) of each row number; same shape, uint64."""
    z = np.array(rows, dtype=np.int64).view(np.uint64)
    z += np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def checksum(hashes: NDArray[np.uint64]) -> int:
    """The sum of the hashes mod 2**64; 0 for none. Sums of parts add up mod 2**64, in any order."""
    return int(np.sum(hashes, dtype=np.uint64))


def epoch_checksum(num_rows: int) -> int:
    """What an epoch over rows 0 .. num_rows-1 sums to if each was used once. Memory is constant."""
    total = 0
    for lo in range(0, num_rows, _CHUNK_ROWS):
        total += checksum(row_hash(np.arange(lo, min(lo + _CHUNK_ROWS, num_rows), dtype=np.int64)))
    return total % 2**64
