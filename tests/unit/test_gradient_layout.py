"""A gradient lies in memory as its parameter does: fused optimizers do not look at strides."""

from __future__ import annotations

from pathlib import Path

import pytest
import saved
import torch
from small_runs import RECIPE, project, trained

STRIDED = RECIPE.replace(
    "    optimizer = ",
    "    if config['strided']:\n"
    "        weight = model[0].weight\n"
    "        model[0].weight = torch.nn.Parameter(weight.detach().t().contiguous().t())\n"
    "        assert not model[0].weight.is_contiguous()\n"
    "    optimizer = ",
)


@pytest.mark.parametrize("determinism", ["bitwise", "relaxed"])
def test_a_parameter_that_is_not_contiguous_trains_as_one_that_is(tmp_path: Path, determinism: str) -> None:
    weights = []
    for strided in (False, True):
        spec = project(tmp_path / str(strided), STRIDED, config={"strided": strided}, determinism=determinism)
        run = trained(spec, tmp_path / "runs", f"strided-{strided}")
        weights.append(saved.tensors(run.checkpoints, 21))
    for name, weight in weights[0].items():
        assert torch.allclose(weight, weights[1][name], atol=1e-5), name
