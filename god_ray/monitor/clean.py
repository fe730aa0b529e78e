"""Metrics as plain numbers and words, at the place where they are reported.

In: what a recipe's code returned. Out: a dict of float, int, str, bool, None that any JSON writer takes.
Must not import numpy or torch: a value of theirs cannot exist unless somebody else did.
Failure shows as RecipeError naming the key, in the worker that reported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

from god_ray.errors import RecipeError

Plain: TypeAlias = "float | int | str | bool | None"

MAX_METRICS = 1000
MAX_TEXT = 1000  # characters of a key or a text value
_FIX = "return Python numbers, 0-dimensional tensors or numpy scalars, each under a text key"


def plain(metrics: Mapping[Any, Any]) -> dict[str, Plain]:
    """A plain copy. RecipeError naming the key of what is not one number, word, truth value or None."""
    if len(metrics) > MAX_METRICS:
        raise RecipeError(
            f"{len(metrics)} metrics were reported at once",
            f"{MAX_METRICS} are allowed",
            "report fewer, summed up",
        )
    return {_key(key): _value(key, value) for key, value in metrics.items()}


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise RecipeError(f"a metric's key is {_short(key)}", f"it is a {_kind(key)}, not text", _FIX)
    if len(key) > MAX_TEXT:
        raise RecipeError(f"a metric's key has {len(key)} characters", f"{MAX_TEXT} are allowed", _FIX)
    return str(key)


def _value(key: str, value: Any) -> Plain:
    if value is None or type(value) is bool:
        return value
    if _is_scalar(value):
        try:
            value = value.item()
        except (
            RuntimeError,
            ValueError,
            NotImplementedError,
        ) as error:  # a meta tensor, a device that failed
            raise _unusable(key, value, f"its value cannot be read: {error}") from error
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int) and value.bit_length() <= 64:
        return int(value)
    if isinstance(value, str) and len(value) <= MAX_TEXT:
        return str(value)
    raise _unusable(key, value, f"a {_kind(value)} is not one number, short text or truth value")


def _is_scalar(value: Any) -> bool:
    """A 0-dimensional tensor or array, or a numpy scalar: told by the type, without touching the data."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return bool(value.ndim == 0)
    return torch is not None and isinstance(value, torch.Tensor) and value.ndim == 0


def _unusable(key: str, value: Any, why: str) -> RecipeError:
    return RecipeError(f"metric {key!r} = {_short(value)} cannot be reported", why, _FIX, key=key)


def _kind(value: Any) -> str:
    kind = type(value)
    shape = getattr(value, "shape", None)
    of_shape = f" of shape {tuple(shape)}" if isinstance(shape, tuple) else ""
    return f"{kind.__module__}.{kind.__qualname__}{of_shape}"


def _short(value: Any) -> str:
    """Of the type only, if it could be large or slow to print."""
    if isinstance(value, int | float | complex | str | bytes):
        return repr(value[:40] if isinstance(value, str | bytes) else value)[:60]
    return f"<{type(value).__qualname__}>"
