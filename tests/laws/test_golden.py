"""Golden digests: a change of god_ray that changes a bit of the digits example shows here.

They hold for one numeric fingerprint each (tests/golden/digits.json). On another machine the test is skipped,
naming the fact that differs. After a change that is meant to change bits, or to add a machine:
GOD_RAY_UPDATE_GOLDEN=1 pytest tests/laws/test_golden.py
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from god_ray.api import Result
from god_ray.runtime.run_folder import RunFolder
from laws.crew import DEBUG, TESTS, Crew, happened

GOLDEN = TESTS / "golden" / "digits.json"
EXAMPLE = TESTS.parent / "examples" / "digits"
STEPS = (23, 100, 345, 690)


@pytest.fixture(scope="module")
def data(quick_disk: Path) -> Path:
    """The example's data, made by its own script."""
    spec = importlib.util.spec_from_file_location("make_data", EXAMPLE / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    make_data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_data)
    for name, test in (("train", False), ("test", True)):
        make_data.write(make_data.digits(test), quick_disk / "digits" / f"{name}.parquet")
    return quick_disk / "digits"


def run(crew: Crew, data: Path, storage: Path, workers: int) -> Result:
    overrides = [
        f"data.train={data}/train.parquet",
        f"data.eval={data}/test.parquet",
        f"storage={storage}",
        f"name=digits-{workers}",
        "determinism.isa=avx2",
    ]
    result, _ = crew.train(str(EXAMPLE / "run.yaml"), workers, overrides)
    assert result.state == "SUCCEEDED", result.failure
    return result


def without_patch(fingerprint: dict[str, str]) -> dict[str, str]:
    """Patch releases keep the numbers: 2.13.0+cpu is 2.13+cpu."""

    def minor(version: str) -> str:
        number, plus, build = version.partition("+")
        return ".".join(number.split(".")[:2]) + plus + build

    return {k: minor(v) if k in ("torch", "numpy") else v for k, v in sorted(fingerprint.items())}


def golden_for(fingerprint: dict[str, str], found: dict[str, str]) -> dict[str, str]:
    """The digests on file for this fingerprint; else a skip that names what differs from the nearest one."""
    entries: list[dict[str, Any]] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else []
    if os.environ.get("GOD_RAY_UPDATE_GOLDEN"):
        entries = [entry for entry in entries if entry["fingerprint"] != fingerprint]
        entries.append({"fingerprint": fingerprint, "digests": found})
        GOLDEN.write_text(json.dumps(entries, indent=1) + "\n")
    differing = []
    for entry in entries:
        known = entry["fingerprint"]
        keys = [k for k in known.keys() | fingerprint.keys() if known.get(k) != fingerprint.get(k)]
        if not keys:
            return dict(entry["digests"])
        differing.append([f"{k} is {fingerprint.get(k)} here, {known.get(k)} there" for k in sorted(keys)])
    nearest = "; ".join(min(differing, key=len, default=["there are none"]))
    pytest.skip(f"no golden digests for this machine: {nearest}")


def test_the_digits_example(crew: Crew, data: Path, quick_disk: Path) -> None:
    """All 690 steps, in one process and with three workers."""
    if crew.isa is None:
        pytest.skip("golden digests are made with AVX2, which this processor does not have")
    alone = run(crew, data, quick_disk / "runs", DEBUG)
    assert alone.metrics["accuracy"] > 0.96
    records = happened(alone)
    three = run(crew, data, quick_disk / "runs", 3)
    assert happened(three) == records
    fingerprint = without_patch(RunFolder(alone.folder).read()["fingerprint"])
    found = {str(step): records[step - 1]["digest"] for step in STEPS}
    assert golden_for(fingerprint, found) == found
