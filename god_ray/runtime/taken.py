"""What a warm start took over, as facts for `run.json` and as words for people.

In: names, from `weight_fit.py`. Out: plain data, one line of text. Must import neither torch nor ray:
`status` reads the facts back from the run's record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from god_ray.errors import few

DIFFERENCES = {
    "missing": "not in the file",
    "unknown": "not in the model",
    "shapes": "shape differs",
}
"""What `partial` lets pass, by the field of `Taken`, in words."""


@dataclass(frozen=True)
class Taken:
    """Counts are of the model's tensors, a tied one once. `fingerprint` is of all that the source holds."""

    path: str
    fingerprint: str
    num_taken: int
    num_tensors: int
    missing: list[str]
    unknown: list[str]
    shapes: list[str]
    """As `name [10, 64] (the file's), [3, 64] (the model's)`."""
    casts: list[str]
    """As `name float16 to float32`; no value changed."""
    stripped: str
    """What was taken off the names in the file."""

    @property
    def whole(self) -> bool:
        return not any(getattr(self, name) for name in DIFFERENCES)


def words(taken: Mapping[str, Any]) -> str:
    """One line, long lists cut short; `taken` is a `Taken` as a mapping."""
    return "; ".join(_parts(taken))


def _parts(taken: Mapping[str, Any]) -> Iterator[str]:
    yield f"{taken['num_taken']} of {taken['num_tensors']} tensors taken"
    for name, said in DIFFERENCES.items():
        if taken[name]:
            yield f"{said}: {few(taken[name])}"
    if taken["casts"]:
        yield f"cast without changing a value: {few(taken['casts'])}"
    if taken["stripped"]:
        yield f"{taken['stripped']} taken off the file's names"
