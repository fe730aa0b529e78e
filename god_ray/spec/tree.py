"""What was written, before it means anything: plain values, and for each key the place it came from.

In: YAML nodes or Python values, one key at a time. Out: nested dicts and lists, and `Place`s by path. Knows
the file names and lines that every later message uses; must not know which keys exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from god_ray.spec.problem import ABSENT, Path, Problem


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: `file` to point at it, `origin` to name it in the resolved spec."""

    file: str
    origin: str
    line: int = 0
    text: str = ""  # as typed, for values that YAML read differently

    def __str__(self) -> str:
        return f"{self.origin}:{self.line}" if self.line else self.origin


@dataclass
class Tree:
    """The values of a spec as written, with their places and the faults found on the way."""

    root: Place
    value: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: Path) -> Place:
        """Where `path` was written, or else the nearest section around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.root)

    def get(self, path: Path) -> Any:
        """The value at `path`, ABSENT when nothing was written there."""
        value: Any = self.value
        for part in path:
            if isinstance(value, list):
                value = dict(enumerate(value))
            if not isinstance(value, dict) or part not in value:
                return ABSENT
            value = value[part]
        return value

    def forget(self, path: Path) -> None:
        """Drop the places at and below `path`, before something else is written there."""
        for known in [p for p in self.places if p[: len(path)] == path]:
            del self.places[known]
