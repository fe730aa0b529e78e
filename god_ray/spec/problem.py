"""One fault of a spec, complete enough to be mended without opening the manual.

In: where it is, what stands there, which rule it breaks, what to write instead. Out: one line of text. A
`Fault` names the place by its keys; a `Problem` by file and line as well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from god_ray.fileuri import has_secrets, without_secrets

Path = tuple[str | int, ...]
ABSENT = ...  # the value of a key that is not there; null is a value


@dataclass(frozen=True, slots=True)
class Fault:
    """`uses`: the other keys that the rule looks at. `value`: what they have when nothing was written at
    `path`.
    """

    path: Path
    rule: str
    fix: str
    uses: tuple[Path, ...] = ()
    value: object = ABSENT


@dataclass(frozen=True, slots=True)
class Problem:
    """`file` is the spec as the user named it, `--set` or `python`; `line` counts from 1, 0 where there are
    no lines.
    """

    key: str
    value: object
    rule: str
    fix: str
    file: str
    line: int

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = f"{self.key} = {shown(self.value)}" if self.key and self.value is not ABSENT else self.key
        return ": ".join(part for part in (place, subject, self.rule) if part) + f". Fix: {self.fix}"


def dotted(path: Path) -> str:
    """("data", "train", 1) as `data.train[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def shown(value: object, limit: int = 80) -> str:
    """A value as it may be written in YAML, cut to one short line; of a URI, without credentials."""
    if isinstance(value, str) and has_secrets(value):
        value = without_secrets(value)
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else text[: limit - 3] + "..."
