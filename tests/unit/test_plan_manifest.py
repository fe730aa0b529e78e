"""The manifest: row groups are cut into fragments, and rows are numbered through all of them."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from god_ray.plan import MAX_FRAGMENT_ROWS, Manifest


def test_a_large_group_is_cut_and_an_empty_one_leaves_no_fragment() -> None:
    manifest = Manifest.build(["a", "b"], [(0, 0, 1000), (0, 1, 40_000), (1, 0, 0), (1, 1, 5)], "ab12")
    assert manifest.files == ("a", "b")
    assert manifest.file.tolist() == [0, 0, 0, 0, 1]
    assert manifest.group.tolist() == [0, 1, 1, 1, 1]
    assert manifest.offset.tolist() == [0, 0, 16_384, 32_768, 0]
    assert manifest.rows.tolist() == [1000, 16_384, 16_384, 7232, 5]
    assert manifest.start.tolist() == [0, 1000, 17_384, 33_768, 41_000, 41_005]
    assert (manifest.num_rows, manifest.num_fragments, manifest.fingerprint) == (41_005, 5, "ab12")
    kinds = [manifest.file.dtype, manifest.group.dtype, manifest.offset.dtype, manifest.rows.dtype]
    assert kinds == [np.int32, np.int32, np.int64, np.int64]


def test_a_group_of_exactly_the_limit_stays_whole() -> None:
    manifest = Manifest.build(["a"], [(0, 0, MAX_FRAGMENT_ROWS), (0, 1, MAX_FRAGMENT_ROWS + 1)], "")
    assert manifest.rows.tolist() == [16_384, 16_384, 1]


def test_groups_of_ten_rows_beside_one_of_a_million() -> None:
    """Case 12.03: skewed row groups; no fragment, so no read, is larger than the limit."""
    manifest = Manifest.build(["a"], [(0, 0, 10), (0, 1, 1_000_000), (0, 2, 10)], "")
    assert manifest.num_fragments == 1 + 62 + 1
    assert int(manifest.rows.max()) == 16_384
    assert manifest.rows[[0, 62, 63]].tolist() == [10, 1_000_000 - 61 * 16_384, 10]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 100_000)), max_size=20))
def test_fragments_tile_their_groups_in_source_order(groups: list[tuple[int, int, int]]) -> None:
    manifest = Manifest.build(["a", "b", "c"], groups, "")
    fragments = zip(manifest.file, manifest.group, manifest.offset, manifest.rows, strict=True)
    for file, group, num_rows in groups:
        done = 0
        while done < num_rows:
            in_file, in_group, offset, rows = (int(value) for value in next(fragments))
            assert (in_file, in_group, offset) == (file, group, done)
            assert rows == min(MAX_FRAGMENT_ROWS, num_rows - done)
            done += rows
    assert next(fragments, None) is None
    assert manifest.num_rows == sum(rows for _, _, rows in groups)


def test_no_groups_is_an_empty_manifest() -> None:
    manifest = Manifest.build([], [], "")
    assert (manifest.num_rows, manifest.num_fragments) == (0, 0)


def test_an_integer_array_is_taken_like_a_list() -> None:
    groups = [(0, 0, 20_000), (1, 3, 7)]
    one, two = (Manifest.build(["a", "b"], source, "") for source in (groups, np.array(groups)))
    assert one.rows.tolist() == two.rows.tolist()
    assert one.group.tolist() == two.group.tolist()


def test_it_prints_short() -> None:
    assert repr(Manifest.build(["a"], [(0, 0, 20_000)], "")) == "Manifest(1 files, 2 fragments, 20000 rows)"


def test_it_survives_pickling() -> None:
    manifest = pickle.loads(pickle.dumps(Manifest.build(["a"], [(0, 0, 20_000)], "f")))
    assert (manifest.files, manifest.start.tolist(), manifest.fingerprint) == (
        ("a",),
        [0, 16_384, 20_000],
        "f",
    )


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [([(0, 0, -1)], "-1 rows"), ([(1, 0, 5)], "outside 0 .. 0"), ([(-1, 0, 5)], "outside 0 .. 0")],
)
def test_a_wrong_source_is_refused(groups: list[tuple[int, int, int]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Manifest.build(["a"], groups, "")


def test_arrays_of_different_length_or_empty_fragments_are_refused() -> None:
    def manifest(rows: list[int], count: int) -> Manifest:
        index, offset = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int64)
        return Manifest(("a",), index, index, offset, np.array(rows, dtype=np.int64), "")

    with pytest.raises(ValueError, match="one length"):
        manifest([1, 2], 1)
    with pytest.raises(ValueError, match="without rows"):
        manifest([1, 0], 2)
