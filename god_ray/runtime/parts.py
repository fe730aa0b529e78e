"""What a spec names that can be looked at by itself: the recipe, the data sets, and what they are used with.

In: a loaded spec, or one that has faults, as it was written. Out: `Parts` with absolute paths, and the line
of each. Keys that are at fault themselves are left out. Reads the spec's file and no other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from god_ray.spec import LoadedSpec


@dataclass
class Parts:
    """What can be looked at by itself. None: not given, or at fault already."""

    recipe: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    train: list[str] | None = None
    evaluation: list[str] | None = None
    columns: list[str] | None = None
    types: dict[str, str] = field(default_factory=dict)
    nulls: list[str] = field(default_factory=list)
    preprocess: str | None = None
    fit: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    storage: str = "runs"
    places: dict[str, str] = field(default_factory=dict)
    """Key to `run.yaml:4`, `--set` or `default`."""


def parts_of(loaded: LoadedSpec) -> Parts:
    spec, data = loaded.spec, loaded.spec.data
    return Parts(
        spec.recipe,
        spec.config,
        spec.seed,
        list(data.train),
        None if data.eval is None else list(data.eval),
        data.columns,
        dict(data.types),
        list(data.nulls),
        data.preprocess,
        dict(data.fit),
        spec.batch_size,
        spec.storage,
        loaded.origins,
    )


def parts_as_written(path: str | os.PathLike[str], overrides: Sequence[str], wrong: set[str]) -> Parts:
    """Of a spec that has faults: the parts whose own keys have none."""
    from god_ray.spec.overrides import set_overrides
    from god_ray.spec.paths import absolute
    from god_ray.spec.yaml12 import read_file

    file = Path(os.path.expanduser(os.fspath(path))).absolute()
    try:
        tree = read_file(file.read_text(encoding="utf-8-sig"), file.name, file.name)
    except (OSError, UnicodeDecodeError):
        return Parts()  # the spec's own fault says so
    set_overrides(tree, overrides)

    def written(*keys: str, kind: type) -> Any:
        name = ".".join(keys)
        value = tree.get(keys)
        at_fault = any(key == name or key.startswith((f"{name}.", f"{name}[")) for key in wrong)
        return value if isinstance(value, kind) and not at_fault else None

    def files(key: str) -> list[str] | None:
        text, texts = written("data", key, kind=str), written("data", key, kind=list)
        texts = [text] if text is not None else texts
        return [absolute(entry, file.parent) for entry in texts] if texts else None

    recipe, preprocess = written("recipe", kind=str), written("data", "preprocess", kind=str)
    return Parts(
        recipe and absolute(recipe, file.parent),
        written("config", kind=dict) or {},
        written("seed", kind=int) or 0,
        files("train"),
        files("eval"),
        written("data", "columns", kind=list),
        written("data", "types", kind=dict) or {},
        written("data", "nulls", kind=list) or [],
        preprocess and absolute(preprocess, file.parent),
        written("data", "fit", kind=dict) or {},
        written("batch_size", kind=int),
        absolute(written("storage", kind=str) or "runs", Path.cwd()),
        {".".join(map(str, keys)): str(tree.place(keys)) for keys in tree.places},
    )
