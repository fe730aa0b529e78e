"""Which type the texts of a column have, told from all of them, so that no value changes.

In: Arrow arrays of text, batch by batch. Out: a type, and the texts converted to it. "007", "+1" and a number
that no type holds exactly stay text; a column is what all of its values are. Must not know files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from god_ray.spec.values import TYPES as NAMES

_OTHERS = {
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us"),
    "timestamp_utc": pa.timestamp("us", "UTC"),
}
TYPES: dict[str, pa.DataType] = {
    name: _OTHERS[name] if name in _OTHERS else getattr(pa, name)() for name in NAMES
}
_TIME = r"[ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"
_INT = r"^(0|-?[1-9][0-9]*)$"
_UNREAL = r"^(-?(inf|Infinity)|nan|NaN)$"
_FLOAT = rf"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$|{_UNREAL}"
_BOOL = r"^(true|false|True|False|TRUE|FALSE)$"
_EXACT_DIGITS = 15
"""Whole numbers of so many digits are float64s."""


def convert(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The texts as that type; an empty text is null, but for text. Raises ValueError: (index, text)."""
    if kind == pa.string():
        return texts
    coded = _empty_is_null(texts).dictionary_encode()  # few of them are different, mostly
    wrong = _first_wrong(coded.dictionary, kind)
    if wrong is not None:
        raise ValueError(pc.index(texts, wrong).as_py(), wrong.as_py())
    return _cast(coded.dictionary, kind).take(coded.indices)


def _first_wrong(texts: pa.Array, kind: pa.DataType) -> pa.StringScalar | None:
    """The first of these that is no value of the type."""
    if pa.types.is_null(kind):
        return texts[0] if len(texts) else None
    pattern = _pattern(kind)
    if pattern is not None:
        fits = pc.match_substring_regex(texts, pattern)
        if not pc.all(fits).as_py():
            return texts[pc.index(fits, False).as_py()]
    if _casts(texts, kind):
        return None
    return next(text for text in texts if not _casts(pa.array([text.as_py()]), kind))


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(len(texts))
    values = pc.cast(pc.utf8_lower(texts) if pa.types.is_boolean(kind) else texts, kind)
    if pa.types.is_floating(kind):
        grown = pc.and_(pc.is_inf(values), pc.invert(pc.match_substring_regex(texts, _UNREAL)))
        if pc.any(grown).as_py():
            raise pa.ArrowInvalid("a number that is too large")
    return values


def _casts(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        _cast(texts, kind)
    except pa.ArrowInvalid:
        return False
    return True


def _pattern(kind: pa.DataType) -> str | None:
    """What a text of the type looks like; Arrow would take more, for example " 7"."""
    if pa.types.is_boolean(kind):
        return _BOOL
    if pa.types.is_integer(kind):
        return _INT
    if pa.types.is_floating(kind):
        return _FLOAT
    if pa.types.is_date(kind):
        return r"^\d{4}-\d{2}-\d{2}$"
    if pa.types.is_timestamp(kind):
        return rf"^\d{{4}}-\d{{2}}-\d{{2}}{_TIME}" + (r"(Z|[-+]\d{2}:?\d{2})$" if kind.tz else "$")
    return None


def _empty_is_null(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _inexact(texts: pa.Array) -> bool:
    """Whether one of them is a whole number that no float64 is."""
    long = texts.filter(pc.greater(pc.utf8_length(texts), _EXACT_DIGITS))
    whole = long.filter(pc.match_substring_regex(long, _INT))
    return any(int(float(text)) != int(text) for text in whole.to_pylist())


@dataclass
class ColumnType:
    """Told every text of a column, `kind` is its type."""

    candidates: list[str] = field(
        default_factory=lambda: ["bool", "int64", "float64", "date32", "timestamp", "timestamp_utc"]
    )
    empty: bool = True
    whole: bool = True
    """Only whole numbers: if they are not int64s they are ids, and no floats."""
    numbers: bool = False
    stranger: tuple[int, str] | None = None
    """The first text that is no number: (row, text)."""

    def see(self, texts: pa.Array, first_row: int) -> None:
        there = _empty_is_null(texts).unique().drop_null()
        if not len(there):
            return
        self.empty = False
        number, unreal, whole = (pc.match_substring_regex(there, p) for p in (_FLOAT, _UNREAL, _INT))
        self.numbers |= pc.any(pc.and_not(number, unreal)).as_py()
        self.whole &= pc.all(whole).as_py()
        if self.stranger is None and not pc.all(number).as_py():
            text = there[pc.index(number, False).as_py()]
            self.stranger = (first_row + pc.index(texts, text).as_py(), text.as_py())
        self.candidates = [name for name in self.candidates if self._fits(there, name)]

    def _fits(self, texts: pa.Array, name: str) -> bool:
        if _first_wrong(texts, TYPES[name]) is not None:
            return False
        return name != "float64" or not _inexact(texts)

    @property
    def kind(self) -> pa.DataType:
        if self.empty:
            return pa.null()
        found = self.candidates[0] if self.candidates else "string"
        if found == "float64" and (self.whole or not self.numbers):
            return pa.string()
        return TYPES[found]

    def note(self, name: str) -> str | None:
        """Why a column with numbers is text, if it is."""
        if self.kind != pa.string() or not self.numbers or self.stranger is None:
            return None
        row, text = self.stranger
        return f"column {name} is text: {text!r} in row {row + 1} is no number, as others are"
