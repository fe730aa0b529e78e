"""Metrics become plain numbers where they are reported, or are refused by name (cases 11.01, 11.02)."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from god_ray.errors import RecipeError
from god_ray.monitor.clean import MAX_METRICS, MAX_TEXT, plain


class Level(enum.IntEnum):
    HIGH = 2


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1.5, 1.5),
        (3, 3),
        (True, True),
        (None, None),
        ("word", "word"),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(0.1), 0.1),
        (np.float16(0.5), 0.5),
        (np.int64(-7), -7),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("word"), "word"),
        (np.array(2.5), 2.5),
        (np.array(4), 4),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor(6), 6),
        (torch.tensor(True), True),
        (torch.nn.Parameter(torch.tensor(2.0)), 2.0),
        (Level.HIGH, 2),
    ],
    ids=repr,
)
def test_one_value_becomes_plain(value: object, wanted: object) -> None:
    found = plain({"metric": value})["metric"]
    assert found == wanted
    assert type(found) is type(wanted)
    assert json.loads(json.dumps(found)) == wanted


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, torch.tensor])
def test_nan_and_infinity_stay_numbers(kind: Any) -> None:
    found = plain({"nan": kind(math.nan), "inf": kind(-math.inf)})
    assert math.isnan(found["nan"])  # type: ignore[arg-type]
    assert found["inf"] == -math.inf


class FromNowhere:
    """An object whose class a driver could not import, and whose data must not be touched."""

    def __repr__(self) -> str:
        raise AssertionError("printed")

    def __reduce__(self) -> str:
        raise AssertionError("pickled")


@pytest.mark.parametrize(
    "value",
    [
        decimal.Decimal("0.1"),
        fractions.Fraction(1, 3),
        datetime.datetime(2024, 1, 1),
        np.datetime64("2024-01-01"),
        np.array("2024", dtype="datetime64[Y]"),
        {"nested": 1},
        [1.0],
        (1.0,),
        {1.0},
        b"bytes",
        1j,
        np.complex64(1),
        torch.tensor(1j),
        np.zeros(1),
        torch.zeros(1),
        torch.zeros(0),
        torch.zeros(1 << 20),
        torch.zeros((), device="meta"),
        lambda: 1,
        FromNowhere(),
        2**65,
        "x" * (MAX_TEXT + 1),
        np.array(None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(RecipeError, match="'f1_score'") as caught:
        plain({"loss": 1.0, "f1_score": value})
    assert caught.value.data["key"] == "f1_score"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", [1, None, ("a", "b"), b"loss", 2.0])
def test_a_key_that_is_not_text_is_refused(key: object) -> None:
    with pytest.raises(RecipeError, match="a metric's key is"):
        plain({key: 1.0})


def test_size_is_limited() -> None:
    with pytest.raises(RecipeError, match=f"{MAX_METRICS} are allowed"):
        plain({str(n): n for n in range(MAX_METRICS + 1)})
    with pytest.raises(RecipeError, match="1001 characters"):
        plain({"k" * 1001: 1})


def test_the_input_is_left_alone() -> None:
    given = {"loss": np.float32(1)}
    assert plain(given) == {"loss": 1.0}
    assert type(given["loss"]) is np.float32


def test_it_imports_neither_numpy_nor_torch() -> None:
    code = (
        "import sys; from god_ray.monitor.clean import plain; "
        "print(plain({'loss': 1.0}), sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'loss': 1.0} []\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: metrics on the GPU not tried")
def test_a_number_on_the_gpu_is_fetched() -> None:
    assert plain({"loss": torch.tensor(0.5, device="cuda")}) == {"loss": 0.5}
    with pytest.raises(RecipeError, match="'logits'"):
        plain({"logits": torch.zeros(3, device="cuda")})
