"""Training on a CUDA device. Skipped, saying so, where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import god_ray

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing here was run"),
]

RECIPE = """
import torch
from torch import nn
import god_ray

def build(config):
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    def loss(model, batch):
        assert batch["x"].is_cuda
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])
    return god_ray.Recipe(model=model, optimizer=optimizer, loss=loss)
"""


@pytest.fixture
def spec(tmp_path: Path) -> dict[str, object]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((500, 16), dtype=np.float32)
    table = pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 16),
            "y": generator.integers(0, 4, 500),
        }
    )
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=100)
    (tmp_path / "recipe.py").write_text(RECIPE)
    return {
        "recipe": str(tmp_path / "recipe.py"),
        "data": {"train": str(tmp_path / "train.parquet")},
        "batch_size": 64,
        "epochs": 2,
        "workers": {"min": 1, "max": 1, "gpus": 1},
        "storage": str(tmp_path / "runs"),
    }


def test_two_runs_on_a_device_have_the_same_bits(spec: dict[str, object]) -> None:
    digests = {god_ray.train(spec, debug=True, name=name).digest for name in ("a", "b")}
    assert len(digests) == 1


def test_ray_train_with_nccl_gives_the_digest_of_the_debug_run(spec: dict[str, object]) -> None:
    alone = god_ray.train(spec, debug=True, name="alone")
    on_ray = god_ray.train(spec, name="on-ray")
    assert on_ray.state == "SUCCEEDED"
    assert on_ray.digest == alone.digest


def test_bf16_mixed_is_deterministic_too(spec: dict[str, object]) -> None:
    digests = {
        god_ray.train(spec, debug=True, name=name, precision="bf16-mixed").digest for name in ("a", "b")
    }
    assert len(digests) == 1
