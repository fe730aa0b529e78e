"""An exported file is what `load_state_dict` takes, strictly, and holds the checkpoint's bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from checkpoint_cases import Net, make, train
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from god_ray.checkpoint.export import export
from god_ray.checkpoint.state import capture
from god_ray.checkpoint.store import CheckpointStore
from god_ray.errors import CheckpointError
from god_ray.storage.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    made = CheckpointStore(LocalStore(tmp_path / "checkpoints"), 1)
    state = make("fused")
    train(state, 3)
    made.write(3, capture(state), {})
    return made


def test_it_loads_strictly_and_equals_the_model(store: CheckpointStore, tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    out = export(store, 3, Net, tmp_path / "a folder" / "model.safetensors")
    state = make("fused")
    train(state, 3)
    model = Net()
    model.load_state_dict(load_file(out))
    for name, tensor in state.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
        assert tensor.dtype == model.state_dict()[name].dtype
    assert "cache" not in load_file(out)  # not persistent
    assert model.head.weight is model.embed.weight
    with safe_open(out, "pt") as file:  # type: ignore[no-untyped-call]
        assert file.metadata() == {"format": "pt", "step": "3", "digest": store.load(3)[0].digest()}
    assert os.listdir(out.parent) == ["model.safetensors"]


def test_a_damaged_checkpoint_is_not_exported(store: CheckpointStore, tmp_path: Path) -> None:
    os.truncate(Path(store.place(3)) / "optimizer-1of1.1.safetensors", 10)
    with pytest.raises(CheckpointError, match="optimizer-1of1"):
        export(store, 3, Net, tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


def test_another_model_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not fit the recipe"):
        export(store, 3, lambda: nn.Linear(1, 1), tmp_path / "m.safetensors")


def test_a_target_that_cannot_be_written_is_named(store: CheckpointStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"could not be written to .*file/m\.safetensors"):
        export(store, 3, Net, tmp_path / "file" / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"could not be written to .*nowhere/m\.safetensors"):
        export(store, 3, Net, tmp_path / "nowhere" / "m.safetensors")
    assert not (tmp_path / "nowhere").exists()
    out = tmp_path / "taken"
    out.mkdir()
    with pytest.raises(CheckpointError, match="taken"):
        export(store, 3, Net, out)
    assert os.listdir(out) == []
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
