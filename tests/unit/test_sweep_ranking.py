"""How trials compare: direction, ties, and what is not a number."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from god_ray.errors import UserError
from god_ray.sweep.ranking import WORST, Row, ranked, score


def row(name: str, value: float | None) -> Row:
    return Row(name, "SUCCEEDED", "", {}, value, 1, 1, "", Path(name))


@pytest.mark.parametrize(("mode", "order"), [("max", "dabcefg"), ("min", "bcadefg")])
def test_not_a_number_comes_last_in_either_direction(mode: str, order: str) -> None:
    values = {"a": 2.0, "b": 1.0, "c": 1.0, "d": 3.0, "e": math.nan, "f": math.inf, "g": None}
    rows = [row(name, value) for name, value in reversed(values.items())]
    assert "".join(each.name for each in ranked(rows, mode)) == order


def test_a_score_is_higher_for_better_and_always_finite() -> None:
    assert score({"m": 2.0}, "m", "max") == 2.0
    assert score({"m": 2.0}, "m", "min") == -2.0
    for bad in (math.nan, math.inf, -math.inf):
        assert score({"m": bad}, "m", "max") == score({"m": bad}, "m", "min") == WORST


def test_a_metric_that_was_not_measured_is_named_with_those_that_were() -> None:
    with pytest.raises(UserError, match=r"(?s)'accuracy' was not measured.*loss, num_rows"):
        score({"loss": 1.0, "num_rows": 3}, "accuracy", "max")


@pytest.mark.parametrize(
    ("value", "spelt"),
    [(0.0, 0.0), (None, None), (math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")],
)
def test_json_has_no_nan(value: float | None, spelt: object) -> None:
    assert row("a", value).as_plain()["value"] == spelt
    assert row("a", value).valid == isinstance(spelt, float)
