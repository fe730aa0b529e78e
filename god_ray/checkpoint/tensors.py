"""Tensors by name <-> one safetensors file, readable by whom the folder's owner wants.

In: contiguous CPU tensors that share no memory. Must not know what they are. Failure shows as OSError or
SafetensorError, for the caller to name. Imports torch: import it inside the verbs that need it.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor


def write(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)  # the umask's; safetensors makes files for their owner only
    save_file(dict(tensors), path, metadata)
    path.chmod(mode)


def read(path: Path) -> dict[str, Tensor]:
    return load_file(path)
