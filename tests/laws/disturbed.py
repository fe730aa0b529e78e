"""What a disturbed run is compared with: the run that nothing happened to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from god_ray.api import Result
from god_ray.runtime.run_folder import RunFolder
from laws.crew import Crew, happened

SpecOf = Callable[..., dict[str, Any]]
RowsOf = Callable[..., str]


_references: dict[str, Result] = {}


def undisturbed(crew: Crew, spec: dict[str, Any], workers: int = 1) -> Result:
    """The run that nothing happened to; made once for each spec."""
    key = json.dumps([spec | {"name": ""}, workers], sort_keys=True)
    if key not in _references:
        _references[key], _ = crew.train({**spec, "name": spec["name"] + "-undisturbed"}, workers)
        assert _references[key].state == "SUCCEEDED", _references[key].failure
    return _references[key]


def same(disturbed: Result, reference: Result) -> None:
    """Every step once, every number of every step, and the end."""
    assert disturbed.state == "SUCCEEDED", disturbed.failure
    for ours, theirs in zip(happened(disturbed), happened(reference), strict=True):
        assert ours == theirs, f"step {theirs['step']}"
    assert disturbed.digest == reference.digest


def record_of(result: Result) -> dict[str, Any]:
    return RunFolder(result.folder).read()
