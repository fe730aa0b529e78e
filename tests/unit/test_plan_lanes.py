"""Lanes -> workers, and the fixed tree: whoever holds which lanes, the same additions are made."""

from itertools import combinations, pairwise
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from god_ray.plan import split, subtrees, worker_lanes

Range = tuple[int, int]
Expression = object
lanes_and_workers = st.integers(1, 64).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def whole(lo: int, hi: int) -> Expression:
    """The reference: the nested sum of lanes lo .. hi-1 as one process computes it."""
    return lo if hi - lo == 1 else (whole(lo, split(lo, hi)), whole(split(lo, hi), hi))


def combine(lo: int, hi: int, known: dict[Range, Expression]) -> Expression:
    """The nested sum that somebody computes who was given the sums of some subtrees."""
    if (lo, hi) in known:
        return known[lo, hi]
    return combine(lo, split(lo, hi), known), combine(split(lo, hi), hi, known)


def nodes(lo: int, hi: int) -> set[Range]:
    below = nodes(lo, split(lo, hi)) | nodes(split(lo, hi), hi) if hi - lo > 1 else set()
    return below | {(lo, hi)}


@pytest.mark.parametrize(
    ("node", "at"),
    [((0, 2), 1), ((0, 3), 2), ((0, 4), 2), ((0, 5), 4), ((0, 7), 4), ((4, 7), 6), ((0, 8), 4)],
)
def test_the_largest_power_of_two_goes_left(node: Range, at: int) -> None:
    assert split(*node) == at


@pytest.mark.parametrize("node", [(0, 0), (3, 4), (5, 4)])
def test_a_single_lane_does_not_divide(node: Range) -> None:
    with pytest.raises(ValueError, match="does not divide"):
        split(*node)


def test_the_tree_over_seven_lanes() -> None:
    assert whole(0, 7) == (((0, 1), (2, 3)), ((4, 5), 6))
    assert subtrees(0, 7, 7) == [(0, 7)]
    assert subtrees(1, 6, 7) == [(1, 2), (2, 4), (4, 6)]
    assert subtrees(4, 7, 7) == [(4, 7)]
    assert subtrees(3, 3, 7) == []


@pytest.mark.parametrize(("lo", "hi"), [(-1, 2), (2, 1), (0, 8)])
def test_a_range_outside_the_lanes_is_refused(lo: int, hi: int) -> None:
    with pytest.raises(ValueError, match="not inside"):
        subtrees(lo, hi, 7)


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 5, 7, 8, 16, 33, 64])
def test_subtrees_tile_every_range_and_are_few(lanes: int) -> None:
    most = max(1, 2 * ceil(log2(lanes)))
    for lo, hi in combinations(range(lanes + 1), 2):
        found = subtrees(lo, hi, lanes)
        assert [edge for edge, _ in found] + [hi] == [lo] + [edge for _, edge in found]
        assert len(found) <= most


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 7, 8, 11])
def test_subtrees_are_the_maximal_nodes_inside_the_range(lanes: int) -> None:
    tree = nodes(0, lanes)
    for lo, hi in combinations(range(lanes + 1), 2):
        inside = {node for node in tree if lo <= node[0] and node[1] <= hi}
        covered = {node for node in inside for up in inside - {node} if up[0] <= node[0] and node[1] <= up[1]}
        assert set(subtrees(lo, hi, lanes)) == inside - covered


@settings(deadline=None)
@given(st.integers(1, 64).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(1, max(n - 1, 1))))))
def test_any_contiguous_split_makes_the_same_additions(drawn: tuple[int, set[int]]) -> None:
    """Law 2's core: each sums its subtrees, all finish the tree, and always as one process would."""
    lanes, cuts = drawn
    edges = [0, *sorted(cut for cut in cuts if cut < lanes), lanes]
    known = {part: whole(*part) for lo, hi in pairwise(edges) for part in subtrees(lo, hi, lanes)}
    assert combine(0, lanes, known) == whole(0, lanes)


@pytest.mark.parametrize(
    ("lanes", "workers", "ranges"),
    [
        (4, 1, [(0, 4)]),
        (4, 2, [(0, 2), (2, 4)]),
        (4, 3, [(0, 2), (2, 3), (3, 4)]),
        (4, 4, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (7, 3, [(0, 2), (2, 4), (4, 7)]),
        (7, 5, [(0, 2), (2, 4), (4, 5), (5, 6), (6, 7)]),
        (8, 3, [(0, 4), (4, 6), (6, 8)]),  # 3, 3, 2 would make two workers send two subtrees each
        (9, 3, [(0, 3), (3, 6), (6, 9)]),  # one subtree each would cost 8 lanes: even wins
        (
            16,
            5,
            [(0, 4), (4, 8), (8, 12), (12, 14), (14, 16)],
        ),  # whole subtrees; the slowest has 4 either way
    ],
)
def test_ranges_of_known_sizes(lanes: int, workers: int, ranges: list[Range]) -> None:
    assert worker_lanes(lanes, workers) == ranges


@settings(deadline=None)
@given(lanes_and_workers)
def test_ranges_cover_and_are_balanced(drawn: tuple[int, int]) -> None:
    lanes, workers = drawn
    ranges = worker_lanes(lanes, workers)
    assert len(ranges) == workers
    assert [lo for lo, _ in ranges] + [lanes] == [0] + [hi for _, hi in ranges]
    sizes = [hi - lo for lo, hi in ranges]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 2
    assert max(sizes) <= ceil(lanes / workers) + 1


@settings(deadline=None)
@given(lanes_and_workers)
def test_uneven_ranges_always_buy_shorter_messages(drawn: tuple[int, int]) -> None:
    """Against the textbook split: no longer message, and one lane more only for a shorter one."""
    lanes, workers = drawn

    def cost(ranges: list[Range]) -> tuple[int, int]:
        return max(len(subtrees(*part, lanes)) for part in ranges), max(hi - lo for lo, hi in ranges)

    even = [(lanes * rank // workers, lanes * (rank + 1) // workers) for rank in range(workers)]
    assert cost(worker_lanes(lanes, workers)) <= cost(even)


@settings(deadline=None)
@given(
    lanes_and_workers.filter(lambda drawn: drawn[0] & (drawn[0] - 1) == 0 and drawn[1] & (drawn[1] - 1) == 0)
)
def test_powers_of_two_get_one_subtree_each(drawn: tuple[int, int]) -> None:
    lanes, workers = drawn
    assert all(len(subtrees(*part, lanes)) == 1 for part in worker_lanes(lanes, workers))


@pytest.mark.parametrize(("lanes", "workers"), [(4, 0), (4, 5), (4, -1)])
def test_a_worker_without_a_lane_is_refused(lanes: int, workers: int) -> None:
    with pytest.raises(ValueError, match=f"{workers} workers can't share {lanes} lanes"):
        worker_lanes(lanes, workers)
