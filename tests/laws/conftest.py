"""Fixtures of the law tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from laws.crew import TESTS, Crew

_names = count()


@pytest.fixture
def spec_of(crew: Crew, quick_disk: Path) -> Callable[..., dict[str, Any]]:
    """A spec for the zoo, as a mapping: `spec_of(model, data, **fields)`; each has a name of its own."""

    def spec(config: str | dict[str, Any], train: str, **fields: Any) -> dict[str, Any]:
        data = {"train": train, **fields.pop("data", {})}
        every = fields.pop("digest_every", 1)
        determinism = {"mode": fields.pop("mode", "bitwise"), "isa": crew.isa, "digest_every": every}
        return {
            "recipe": str(TESTS / "recipes" / fields.pop("recipe", "zoo.py")),
            "config": {"model": config} if isinstance(config, str) else config,
            "data": data,
            "batch_size": 16,
            "lanes": 4,
            "seed": 5,
            "name": f"run-{next(_names)}",
            "storage": str(quick_disk / "runs"),
            "determinism": determinism,
            "checkpoint": {"every_s": None},
            **fields,
        }

    return spec
