"""A loaded spec as YAML: every key, each value with its origin as a comment.

In: a `LoadedSpec`. Out: text that loads again to an equal `RunSpec`, whatever the folder. Values are written
as JSON where plain text would be read as something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from god_ray.spec.load import LoadedSpec
from god_ray.spec.problem import Path, dotted
from god_ray.spec.schema import SEARCH
from god_ray.spec.values import Section
from god_ray.spec.yaml12 import scalar

_BARE = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*")
# What YAML does not print, or reads as the end of a line; JSON leaves them as they are.
_UNPRINTED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_HEADER = "# The spec as god_ray understood it: every key, and where its value comes from.\n"


def resolved_yaml(loaded: LoadedSpec) -> str:
    """The effective spec; `load` reads it back to an equal one."""
    return _HEADER + "".join(f"{line}\n" for line in _lines(loaded.spec, (), loaded.origins))


def _lines(value: Any, path: Path, origins: dict[str, str]) -> Iterator[str]:
    for key, inner in dict(value).items():
        here = (*path, key)
        name = "  " * len(path) + _flow(key) + ":"
        if isinstance(inner, Section | dict) and dict(inner) and here[:-1] != SEARCH:
            yield name
            yield from _lines(inner, here, origins)
        else:
            yield f"{name} {_flow(inner)}  # {origins.get(dotted(here), 'default')}"


def _flow(value: Any) -> str:
    """One value on one line."""
    if isinstance(value, Section):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, str) and _BARE.fullmatch(value) and isinstance(scalar(value), str):
        return value
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
