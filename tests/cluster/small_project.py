"""A project that trains in a moment: 96 rows, a linear model in a module of its own, a spec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RECIPE = """
import os

import torch
from torch.nn import functional

import god_ray
from layers import network


def build(config):
    if config.get("variables_to"):
        with open(config["variables_to"], "a") as file:
            file.writelines(f"{name}\\n" for name in os.environ)
    quality = float(config.get("quality", 0.0))
    if quality > 0.8:
        raise ValueError("too good to be true")
    if quality < 0.2:
        quality = float("nan")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])

    def metrics(model, batch):
        right = (model(batch["x"]).argmax(1) == batch["y"]).float()
        return {"accuracy": right, "quality": torch.full((len(right),), quality)}

    def loss(model, batch):
        return functional.cross_entropy(model(batch["x"]), batch["y"])

    return god_ray.Recipe(model=model, optimizer=optimizer, loss=loss, metrics=metrics)
"""
LAYERS = """
from torch import nn


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""
SPEC = """
recipe: recipe.py
data: {train: data/train.parquet, eval: data/test.parquet}
config: {lr: 0.1}
batch_size: 16
epochs: 2
workers: 2
seed: 3
"""


def write(folder: Path) -> Path:
    """The project below `folder`. Returns its spec."""
    (folder / "data").mkdir(parents=True)
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "layers.py").write_text(LAYERS)
    (folder / "run.yaml").write_text(SPEC)
    for name, rows in (("train", 96), ("test", 32)):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 4)
        table = pa.table({"x": column, "y": pa.array((x.sum(axis=1) > 0).astype(np.int64))})
        pq.write_table(table, folder / "data" / f"{name}.parquet", row_group_size=32)
    return folder / "run.yaml"


def god_ray(*words: object, env: dict[str, str] | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "god_ray", *map(str, words)],
        env=dict(os.environ) if env is None else env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


def reference_digest(spec: Path, storage: Path, *changes: str) -> str:
    """What the run comes to in one process, without Ray: by law 2 anywhere else too."""
    words = [word for change in changes for word in ("--set", change)]
    done = god_ray("train", spec, "--debug", "--json", "--storage", storage, *words, cwd=storage.parent)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["digest"])
