"""Row accounting: the hash is SplitMix64, sums are mod 2**64, and an epoch's sum needs no plan."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from god_ray.plan import checksum, epoch_checksum, row_hash

rows_of = st.lists(st.integers(0, 2**62), max_size=50).map(lambda rows: np.array(rows, dtype=np.int64))


def splitmix64(row: int) -> int:
    """The published algorithm, in plain integers."""
    z = (row + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_hash_of_row_zero_is_the_published_first_output_of_seed_zero() -> None:
    assert row_hash(np.array([0, 1], dtype=np.int64)).tolist() == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]


@settings(deadline=None)
@given(rows_of)
def test_hash_is_splitmix64_and_leaves_its_input_alone(rows: np.ndarray) -> None:
    before = rows.copy()
    hashes = row_hash(rows)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [splitmix64(int(row)) for row in rows]
    assert np.array_equal(rows, before)


@settings(deadline=None)
@given(rows_of, rows_of)
def test_checksums_of_parts_add_up(one: np.ndarray, two: np.ndarray) -> None:
    both = checksum(row_hash(np.concatenate([two, one])))
    assert both == (checksum(row_hash(one)) + checksum(row_hash(two))) % 2**64


def test_checksum_of_nothing_is_zero() -> None:
    assert checksum(np.empty(0, dtype=np.uint64)) == 0
    assert epoch_checksum(0) == 0


def test_a_row_used_twice_does_not_cancel() -> None:
    assert checksum(row_hash(np.array([5, 5], dtype=np.int64))) == 2 * splitmix64(5) % 2**64


@pytest.mark.parametrize("num_rows", [1, 1797, 2**18 - 1, 2**18, 2**18 + 1, 600_000])
def test_epoch_checksum_is_the_sum_over_all_rows(num_rows: int) -> None:
    assert epoch_checksum(num_rows) == checksum(row_hash(np.arange(num_rows, dtype=np.int64)))


def test_epoch_checksum_of_the_digits_is_on_file() -> None:
    assert epoch_checksum(1797) == sum(splitmix64(row) for row in range(1797)) % 2**64
