"""What a run has saved, looked at behind its back: files by the part of the state they hold."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor


def files(checkpoints: Path, step: int, part: str) -> list[Path]:
    """`part`: model, optimizer or state; one file for each worker's share."""
    return sorted(checkpoints.glob(f"step-{step:08d}/{part}*"))


def tensors(checkpoints: Path, step: int, part: str = "model") -> dict[str, Tensor]:
    return {name: t for path in files(checkpoints, step, part) for name, t in load_file(path).items()}


def steps(checkpoints: Path) -> list[int]:
    """Of everything that has a checkpoint's name."""
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*"))
