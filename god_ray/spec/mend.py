"""What to write instead of a value that its key does not accept.

In: the key's field, the value, and the text as typed. Out: the sentence after "Fix:". Knows the values that
YAML reads differently from what people expect (`no`, `1.10`, `"64"`); knows no particular key.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic.fields import FieldInfo

from god_ray.spec.problem import Path, shown
from god_ray.spec.schema import choices, kinds, nullable, says, section_in
from god_ray.spec.yaml12 import scalar

_FLAGS = {
    "yes": "true",
    "on": "true",
    "y": "true",
    "1": "true",
    "no": "false",
    "off": "false",
    "n": "false",
    "0": "false",
}


def mend(path: Path, info: FieldInfo, value: Any, text: str) -> str:
    """The fix for a wrong value; `text` is the value as typed, empty when it was not typed."""
    key, accepted = path[-1], kinds(info)
    if value is None and not nullable(info):
        return (
            "write a value"
            if info.is_required()
            else f"write a value, or remove the line; the default is {default(info)}"
        )
    if words := choices(info):
        close = get_close_matches(str(value).lower(), words, n=1, cutoff=0.5)
        return f"did you mean {close[0]}?" if close else f"write {key}: {words[0]}"
    if bool in accepted and str(value).lower() in _FLAGS:
        return f"write {key}: {_FLAGS[str(value).lower()]}"
    if isinstance(value, str) and accepted & {int, float}:
        number = scalar(value.strip().replace("_", "").replace(",", ""))
        if isinstance(number, int | float) and not isinstance(number, bool):
            return f"write {key}: {number}"
    if str in accepted and isinstance(value, int | float):
        return f'put it in quotes: {key}: "{text or shown(value)}"'
    example = says(info).example
    if info.is_required() or info.default is None:
        return f"write for example {key}: {example}" + (", or null" if nullable(info) else "")
    return f"write for example {key}: {example}, or remove the line; the default is {default(info)}"


def default(info: FieldInfo) -> str:
    """A default as it may be written in YAML."""
    inner = section_in(info.annotation)
    if inner is not None and not nullable(info):
        return f"that of each key of {inner.__name__.lower()}"
    value = info.get_default(call_default_factory=True, validated_data={})
    return value if isinstance(value, str) else shown(value)
