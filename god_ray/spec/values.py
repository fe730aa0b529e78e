"""The kinds of value a spec holds: what each accepts, and the words for it in errors and in docs/spec.md.

In: what YAML or Python gave. Out: the same value, or a refusal that `check.py` turns into a `Problem`. A kind
carries one `Says`, so the rule that is printed and the rule that is documented cannot differ. Knows no key of
the spec.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

TYPES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"),
    *("string", "date32", "bool", "timestamp", "timestamp_utc"),
)
"""What texts can be read as."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Section(BaseModel):
    """A part of the spec: no unknown keys, no silent conversions, no changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


@dataclass(frozen=True, slots=True)
class Says:
    """The words that complete "must be ..." for one kind of value, and a value to write instead."""

    rule: str
    example: str


def _whole(value: Any) -> Any:
    """`1e3` is a float to YAML; where a whole number is asked for it means 1000."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else list(value) if isinstance(value, tuple) else value


def _named(value: str) -> str:
    if not NAME.fullmatch(value) or ".." in value:
        raise ValueError
    return value


def _distinct(value: list[str]) -> list[str]:
    if len(set(value)) != len(value):
        raise ValueError
    return value


def _every(value: Any) -> Any:
    value = _whole(value)
    if value == "epoch" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError


def _typed(value: dict[str, str]) -> dict[str, str]:
    if not set(value.values()) <= set(TYPES):
        raise ValueError
    return value


def _fitted(value: dict[str, Any]) -> dict[str, Any]:
    """`{vocabulary: 1e3}` is 1000 words."""
    return {column: _statistic(wanted) for column, wanted in value.items()}


def _statistic(wanted: Any) -> Any:
    if wanted in ("scale", "categories"):
        return wanted
    if isinstance(wanted, dict) and list(wanted) == ["vocabulary"]:
        words = _whole(wanted["vocabulary"])
        if isinstance(words, int) and not isinstance(words, bool) and words >= 1:
            return {"vocabulary": words}
    raise ValueError


_Whole = Annotated[int, BeforeValidator(_whole)]
_Text = Annotated[str, MinLen(1)]

Positive = Annotated[_Whole, Ge(1), Says("a whole number, 1 or more", "1")]
AtLeast2 = Annotated[_Whole, Ge(2), Says("a whole number, 2 or more", "3")]
NotNegative = Annotated[_Whole, Ge(0), Says("a whole number, 0 or more", "0")]
Count = Annotated[_Whole, Ge(1), Le(10**12), Says("a whole number from 1 to 10^12", "1")]
Seed = Annotated[_Whole, Ge(0), Lt(2**63), Says("a whole number from 0 to 2^63 - 1", "0")]
Above0 = Annotated[float, Gt(0), Says("a number above 0", "1.0")]
Amount = Annotated[float, Ge(0), Le(10_000), Says("a number from 0 to 10000", "0")]
Text = Annotated[_Text, Says("text", '"..."')]
Name = Annotated[
    str,
    AfterValidator(_named),
    Says("1 to 100 letters, digits, `.`, `_` or `-`, the first a letter or digit, without `..`", "digits-1"),
]
Texts = Annotated[
    list[_Text],
    BeforeValidator(_listed),
    MinLen(1),
    Says("text or a list of texts, at least one", "train.parquet"),
]
Columns = Annotated[
    list[_Text],
    MinLen(1),
    AfterValidator(_distinct),
    Says("a list of different column names", "[pixels, label]"),
]
Nulls = Annotated[list[str], BeforeValidator(_listed), Says("text or a list of texts", "[NA]")]
Types = Annotated[
    dict[str, str],
    AfterValidator(_typed),
    Says(f"a mapping of column to one of {', '.join(TYPES)}", "{distance: float32}"),
]
Fit = Annotated[
    dict[str, Any],
    AfterValidator(_fitted),
    Says("a mapping of column to scale, categories or {vocabulary: N}", "{distance: scale}"),
]
Flag = Annotated[bool, Says("true or false", "false")]
Every = Annotated[
    Any, BeforeValidator(_every), Says("`epoch` or a whole number of steps, 1 or more", "epoch")
]
