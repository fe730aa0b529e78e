"""The names of a checkpoint's files: which step, which part of the state, whose share, of which attempt.

In: facts. Out: names, and facts back out of names. `model-1of2.3.safetensors` is the first of two shares of
the model's tensors, written by attempt 3: two attempts never write one name. Must not touch any file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from god_ray.checkpoint.share import Share

MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-([0-9]{8,})/([^/]+)")
_NAME = re.compile(r"(model|optimizer|state|share)(?:-[0-9]+of[0-9]+)?(?:\.([0-9]+))?\.(?:safetensors|json)")


def folder(step: int) -> str:
    return f"step-{step:08d}"


def path(step: int, name: str) -> str:
    return f"{folder(step)}/{name}"


def tensors(part: str, share: Share, attempt: int) -> str:
    return f"{part}-{share}.{attempt}.safetensors"


def facts(share: Share, attempt: int) -> str:
    """Where a worker says that its share is durable."""
    return f"share-{share}.{attempt}.json"


def scalars(attempt: int) -> str:
    return f"state.{attempt}.json"


def by_step(objects: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """{step: {name: bytes}} of everything that lies in a checkpoint's folder, ascending by step."""
    found: dict[int, dict[str, int]] = {}
    for name, size in objects.items():
        if match := _FOLDER.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = size
    return dict(sorted(found.items()))


def part(name: str) -> str:
    """ "model", "optimizer", "state" or "share"; "" for a name that is none of ours."""
    match = _NAME.fullmatch(name)
    return match[1] if match else ""


def attempt(name: str) -> int | None:
    """Who wrote it; 0 for a name of format 1. None for a name that is none of ours."""
    match = _NAME.fullmatch(name)
    return int(match[2] or 0) if match else None
