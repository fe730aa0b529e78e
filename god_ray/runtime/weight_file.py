"""Weights out of a file that some program wrote: safetensors, or what `torch.save` made, never its objects.

In: a file. Out: tensors by name, on the CPU. What a file is, its first bytes say, not its name. Must not know
models. No code from a file is run: torch reads with `weights_only`. Failure shows as UserError with what to
do where the file was made.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from god_ray.errors import UserError

ENVELOPES = ("state_dict", "model_state_dict", "model", "module")
"""Where training programs keep the state dict in what they save beside it."""
_SAVE = "where it was made, keep the weights alone: torch.save(model.state_dict(), path)"
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


class NumpyValue:
    """Stands in for the numbers and arrays that are often saved beside the weights: they are not built."""

    def __init__(self, *_: object) -> None:
        return None

    def __setstate__(self, _: object) -> None:
        return None


_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")  # NumPy 2's and NumPy 1's
_MAKERS = [f"{module}.{name}" for module in _MODULES for name in ("scalar", "_reconstruct")]
_UNREAD: list[Any] = [(NumpyValue, name) for name in ("numpy.ndarray", "numpy.dtype", *_MAKERS)]


def read_file(file: Path) -> dict[str, Tensor]:
    """The tensors in `file`. Raises UserError."""
    try:
        with file.open("rb") as opened:
            start = opened.read(32)
    except OSError as error:
        raise _unread(file, f"{error.strerror}.", "make it readable, or name another file.") from error
    if start[8:9] == b"{":  # after the length of its header
        return _safetensors(file)
    if start.startswith((b"PK\x03\x04", b"\x80")):  # a zip, and a pickle from before torch 1.6
        return _state_dict(_torch(file), file)
    why = "It begins neither like a safetensors file nor like one of torch.save."
    if start.startswith(b"version https://git-lfs"):
        raise _unread(file, "It is a Git LFS pointer, not the file itself.", "git lfs pull")
    if not start:
        why = "The file is empty."
    raise _unread(file, why, "name a safetensors file, or one that torch.save wrote.")


def _safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise _unread(file, f"{error}.", "copy or download it again: it is damaged.") from error


def _torch(file: Path) -> object:
    try:
        with torch.serialization.safe_globals(_UNREAD), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TorchScript, which is refused
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle makes its reader raise anything; all of it is told
        raise _refused(file, str(error)) from error


def _refused(file: Path, said: str) -> UserError:
    """Not in torch's words: they advise to load the file unsafely."""
    if found := _GLOBAL.search(said):
        why = f"It holds a Python object ({found[1]}); to load that would run code that the file names."
        return _unread(file, why, f"{_SAVE}.")
    if "TorchScript" in said:
        why = "It is a TorchScript archive, a program with its weights."
        return _unread(file, why, f"{_SAVE}, with model = torch.jit.load(...) if that is all there is.")
    first = said.strip().splitlines()[-1][:200] if said.strip() else "no more is known"
    return _unread(file, f"torch cannot read it: {first}.", "copy or download it again: it is damaged.")


def _state_dict(loaded: object, file: Path) -> dict[str, Tensor]:
    """`loaded` itself, or what it holds under a usual key."""
    if (own := _tensors(loaded)) is not None:
        return own
    if not isinstance(loaded, Mapping):
        raise _unread(file, f"It holds a {type(loaded).__name__}, not a state dict.", f"{_SAVE}.")
    found = {key: inner for key in ENVELOPES if (inner := _tensors(loaded.get(key))) is not None}
    if len(found) == 1:
        return next(iter(found.values()))
    keys = ", ".join(map(str, loaded))
    if found:
        why = f"It holds several state dicts: {', '.join(found)}."
        raise _unread(file, why, "save the one that is meant by itself: torch.save(state_dict, path).")
    why = f"None of {', '.join(ENVELOPES)} in it is a state dict; its keys: {keys[:300] or 'none'}."
    raise _unread(file, why, f"{_SAVE}.")


def _tensors(value: object) -> dict[str, Tensor] | None:
    """A mapping from names to ordinary tensors (not sparse, not quantized, with values), or None."""
    if not isinstance(value, Mapping) or not value:
        return None
    fine = all(isinstance(key, str) and _ordinary(inner) for key, inner in value.items())
    return {key: inner.detach() for key, inner in value.items()} if fine else None


def _ordinary(value: object) -> bool:
    if not isinstance(value, Tensor) or value.device.type != "cpu":
        return False
    return value.layout == torch.strided and not value.is_quantized


def _unread(file: Path, why: str, fix: str) -> UserError:
    return UserError(f"init_from: no weights can be read from {file}.", why, fix)
