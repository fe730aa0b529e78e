"""Scalars become strict JSON and come back as the very same objects, or are refused by name."""

from __future__ import annotations

import decimal
import enum
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from god_ray.checkpoint.codec import MAX_TENSOR_ELEMENTS, decode, encode
from god_ray.errors import CheckpointError, RecipeError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=4)
    ),
    max_leaves=20,
)


def through_json(value: object) -> object:
    return decode(json.loads(json.dumps(encode(value, "entry"), allow_nan=False)))


def exact(value: object) -> str:
    """Type and value at every depth: 1, 1.0 and True differ, so do 0.0 and -0.0."""
    if isinstance(value, dict):
        return f"{type(value).__name__}{[(exact(k), exact(v)) for k, v in value.items()]}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[exact(item) for item in value]}"
    return f"{type(value).__name__} {value!r}"


@given(TREES)
def test_any_tree_comes_back_the_same(tree: object) -> None:
    assert exact(through_json(tree)) == exact(tree)


@pytest.mark.parametrize(
    "value",
    [
        Counter({4: 1, 9: 2}),
        OrderedDict([("b", 1), ("a", (2,))]),
        {"$": "tuple", "v": [1]},
        {1: "a", "1": "b"},
        -0.0,
        math.inf,
        -math.inf,
        2**200,
        np.float32(0.1),
        np.float64(0.1),
        np.int64(-3),
        np.bool_(True),
        np.float16("nan"),
    ],
    ids=repr,
)
def test_kept_exactly(value: object) -> None:
    back = through_json(value)
    assert type(back) is type(value)
    assert exact(back) == exact(value)


def test_nan_is_kept() -> None:
    assert math.isnan(through_json(math.nan))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_small_tensors_are_kept(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = torch.randn(shape).to(dtype)
    back = through_json({"lr": value})["lr"]  # type: ignore[index]
    assert (back.dtype, back.shape) == (dtype, value.shape)
    assert torch.equal(back, value)


def test_a_strided_tensor_is_kept_by_value() -> None:
    value = torch.arange(6.0).reshape(2, 3).t()
    assert torch.equal(through_json(value), value)  # type: ignore[arg-type]


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [lambda: 1, object(), {1, 2}, decimal.Decimal(1), b"x", 1j, Colour.RED, defaultdict(int), np.zeros(2)],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_exact_form_is_refused_by_name(value: object) -> None:
    with pytest.raises(RecipeError, match=r"schedule\.inner\[1\]") as caught:
        encode({"inner": [0, value]}, "schedule")
    assert caught.value.data["entry"] == "schedule.inner[1]"


def test_a_large_tensor_is_refused() -> None:
    with pytest.raises(RecipeError, match="buffer"):
        encode(torch.zeros(MAX_TENSOR_ELEMENTS + 1), "extra.big")


def test_a_kind_of_the_future_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="'quaternion'"):
        decode({"$": "quaternion", "v": [1, 2, 3, 4]})


@given(st.binary(min_size=8, max_size=8))
def test_every_finite_double_keeps_its_bits(raw: bytes) -> None:
    value = struct.unpack("<d", raw)[0]
    if math.isfinite(value):
        assert struct.pack("<d", through_json(value)) == raw
