"""A recipe, data and runs that take a fraction of a second: what the commands' tests look at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from god_ray import api
from god_ray.monitor.ledger import Ledger
from god_ray.runtime.run_folder import RunFolder

RECIPE = """\
import torch
from torch.nn import functional

import god_ray


def loss(model, batch):
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def metrics(model, batch):
    return {"accuracy": (model(batch["x"]).argmax(dim=1) == batch["y"]).float()}


def build(config):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 0.01))
    return god_ray.Recipe(model=model, optimizer=optimizer, loss=loss, metrics=metrics)
"""

SPEC: dict[str, Any] = {
    "recipe": "recipe.py",
    "data": {"train": "train.parquet", "eval": "eval.parquet", "reader": "direct"},
    "batch_size": 8,
    "epochs": 3,
    "seed": 3,
    "determinism": {"digest_every": 5},
    "checkpoint": {"every_steps": 4, "keep": 3, "keep_best": {"metric": "accuracy", "mode": "max"}},
}
"""50 rows in batches of 8: 7 steps an epoch, the last of 2 rows, 21 in all."""
STEPS = 21


def write_rows(path: Path, num_rows: int, seed: int = 0) -> None:
    """`x` [4] float32 and `y` in 0..2, in row groups of 16."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, 4)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 4)
    pq.write_table(pa.table({"x": column, "y": pa.array(x.argmax(axis=1) % 3)}), path, row_group_size=16)


def project(folder: Path, recipe: str = RECIPE, **changes: Any) -> Path:
    """The user's files; returns the spec's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "train.parquet", 50)
    write_rows(folder / "eval.parquet", 13, seed=1)
    (folder / "recipe.py").write_text(recipe)
    spec = folder / "run.yaml"
    spec.write_text(json.dumps(SPEC | changes))  # JSON is YAML
    return spec


def trained(spec: Path, storage: Path, name: str, **changes: Any) -> RunFolder:
    """A run in this process, to its end."""
    result = api.train(spec, debug=True, name=name, storage=str(storage), **changes)
    assert result.state == "SUCCEEDED", result.failure
    return RunFolder(result.folder)


def reseal(run: RunFolder, *ends: int) -> None:
    """Cut the ledger into segments that end at these steps: in a run, the speed of the disk decides that."""
    records = list(Ledger.read(run.ledger))
    shutil.rmtree(run.ledger)
    with Ledger.open_writer(run.ledger) as ledger:
        for record in records:
            ledger.publish(record)
            if record["step"] in ends:
                ledger.seal()


def ledger_files(run: RunFolder) -> list[Path]:
    """The segments, in order."""
    return sorted(path for path in run.ledger.glob("*-*.jsonl"))


def rewrite(run: RunFolder, step: int, **fields: Any) -> None:
    """Tamper with the ledger's line of a step."""
    for path in ledger_files(run):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        changed = [record | fields if record["step"] == step else record for record in records]
        path.write_text("".join(json.dumps(record) + "\n" for record in changed))
