"""Python scalars and small containers <-> strict JSON, exactly, and without pickle.

Answers: how do a scheduler's state or an optimizer's options become text and the very same objects again?
What JSON cannot say (tuples, int keys, Counter, NaN, numpy scalars, small tensors) is {"$": kind, "v": ...}.
Must not know what the values are for. Failure shows as RecipeError naming the entry, never as another value.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from god_ray.errors import CheckpointError, RecipeError

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

TAG = "$"
MAX_TENSOR_ELEMENTS = 1024  # a learning rate as a tensor is fine; data belongs in a buffer
_PLAIN: tuple[type, ...] = (type(None), bool, int, str)


def encode(value: object, where: str) -> JSON:
    """`value` as strict JSON (no NaN). RecipeError, naming the entry `where`, for what has no exact form."""
    kind = type(value)  # exact types: a subclass would come back as its base
    if kind in _PLAIN:
        return value  # type: ignore[return-value]  # narrowed by the line above
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value, where)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return _tagged("numpy", [value.dtype.str, value.tobytes().hex()])
    torch = sys.modules.get("torch")  # no tensor can exist before torch is imported
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(value, where)
    raise RecipeError(
        f"{where} = {_short(value)} cannot be kept in a checkpoint",
        f"a {kind.__module__}.{kind.__qualname__} has no exact form without pickle",
        "keep numbers, strings, lists, tuples and dicts there; tensors belong in a buffer (register_buffer)",
        entry=where,
    )


def decode(value: JSON) -> Any:
    """The object that `encode` was given. CheckpointError if the text does not come from `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: decode(item) for key, item in value.items()}
    reader = _READERS.get(str(value[TAG]))
    if reader is None:
        raise CheckpointError(
            f"a checkpoint holds a value of kind {value[TAG]!r}",
            "this version of god_ray does not know it",
            "resume with the version of god_ray that wrote the checkpoint",
        )
    return reader(value["v"])


def _tagged(kind: str, content: JSON) -> JSON:
    return {TAG: kind, "v": content}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _items(value: Any, where: str) -> list[JSON]:
    return [encode(item, f"{where}[{index}]") for index, item in enumerate(value)]


def _pairs(value: Any, where: str) -> list[JSON]:
    return [
        [encode(key, f"a key of {where}"), encode(item, f"{where}[{key!r}]")] for key, item in value.items()
    ]


def _dict(value: Any, where: str) -> JSON:
    if TAG not in value and all(type(key) is str for key in value):
        return {key: encode(item, f"{where}.{key}") for key, item in value.items()}
    return _tagged("dict", _pairs(value, where))


_WRITERS: dict[type, Callable[[Any, str], JSON]] = {
    list: _items,
    dict: _dict,
    tuple: lambda value, where: _tagged("tuple", _items(value, where)),
    Counter: lambda value, where: _tagged("Counter", _pairs(value, where)),
    OrderedDict: lambda value, where: _tagged("OrderedDict", _pairs(value, where)),
}


def _tensor(value: Any, where: str) -> JSON:
    import torch

    if value.numel() > MAX_TENSOR_ELEMENTS:
        raise RecipeError(
            f"{where} is a tensor of {value.numel()} elements",
            f"among the scalars of a checkpoint a tensor may have {MAX_TENSOR_ELEMENTS} elements",
            "register it as a buffer of the model",
            entry=where,
        )
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return _tagged("tensor", [str(value.dtype).removeprefix("torch."), list(value.shape), raw.hex()])


def _read_tensor(content: Any) -> Any:
    import torch

    dtype, shape, raw = content
    flat = torch.empty(math.prod(shape), dtype=getattr(torch, dtype))
    if flat.numel():
        flat.view(torch.uint8).copy_(torch.frombuffer(bytearray.fromhex(raw), dtype=torch.uint8))
    return flat.reshape(shape)


def _read_numpy(content: Any) -> Any:
    dtype, raw = content
    return np.frombuffer(bytes.fromhex(raw), dtype=dtype)[0]


def _read_pairs(content: Any) -> list[tuple[Any, Any]]:
    return [(decode(key), decode(item)) for key, item in content]


_READERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "numpy": _read_numpy,
    "tensor": _read_tensor,
    "tuple": lambda content: tuple(decode(item) for item in content),
    "dict": lambda content: dict(_read_pairs(content)),
    "Counter": lambda content: Counter(dict(_read_pairs(content))),
    "OrderedDict": lambda content: OrderedDict(_read_pairs(content)),
}
