"""The front door: `god_ray.Recipe`, `god_ray.train`, `resume`, `evaluate`, `Result`, `god_ray.errors`.

Each name is imported when it is first used, so that `import god_ray` costs nothing and loads neither torch
nor ray: the command line and everything that only reads a spec stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from god_ray import errors
    from god_ray.api import Result, evaluate, resume, train
    from god_ray.recipe import Recipe
    from god_ray.rowrandom import RowRandom

_HOMES = {
    "Recipe": "god_ray.recipe",
    "Result": "god_ray.api",
    "RowRandom": "god_ray.rowrandom",
    "evaluate": "god_ray.api",
    "resume": "god_ray.api",
    "train": "god_ray.api",
}

__all__ = ["Recipe", "Result", "RowRandom", "__version__", "errors", "evaluate", "resume", "train"]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("god_ray.errors")
    if name == "__version__":
        from importlib.metadata import version

        return version("god_ray")
    if name not in _HOMES:
        raise AttributeError(f"module 'god_ray' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
