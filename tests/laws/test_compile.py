"""`compile: true`: compiled models keep their bits, whatever the number of workers, and over resumes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from god_ray.loop.request import Request
from laws.crew import DEBUG, Crew, happened


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
def test_compiled_models(
    crew: Crew, spec_of: Callable[..., dict[str, Any]], rows_of: Callable[..., str], tmp_path: Path
) -> None:
    """New processes each time, which meet the shapes of leaves in another order: other bits in no case."""
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environ = dict.fromkeys(range(4), variables)
    spec = spec_of("batch_norm", rows_of(66), epochs=2, compile=True)
    alone, _ = crew.train({**spec, "name": spec["name"] + "-alone"}, DEBUG, environ=environ)
    assert alone.state == "SUCCEEDED", alone.failure
    crew.renew()
    result, _ = crew.train(spec, 2, asks=[(3, Request("stop"))], environ=environ)
    assert (result.state, result.step) == ("STOPPED", 4), result.failure
    crew.renew()
    result, _ = crew.resume(result, 3, environ=environ)
    assert result.state == "SUCCEEDED", result.failure
    assert happened(result) == happened(alone)
    plain, _ = crew.train({**spec, "name": spec["name"] + "-plain", "compile": False}, DEBUG)
    assert plain.digest != alone.digest, "nothing was compiled"
