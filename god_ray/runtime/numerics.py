"""Everything that changes bits: fixed before training, written down, compared.

`environment` must be set before torch is loaded, `pin` after; `fingerprint` is what they lead to on this
machine. It is fixed by the run's first worker; one that differs is refused, both named. In: the spec. Out:
a flat dict of words. Must not know the model beyond its optimizer.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from god_ray.errors import FingerprintMismatch, UserError
from god_ray.spec import RunSpec

if TYPE_CHECKING:
    import torch

_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "MKL_CBWR": "AVX2",
}


def environment(spec: RunSpec) -> dict[str, str]:
    """Variables for a worker process, read by torch's libraries when they are loaded."""
    threads = str(num_threads(spec))
    variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if spec.determinism.isa == "avx2":
        variables |= _AVX2
    return variables


def prepare_process(spec: RunSpec) -> None:
    """For a run in this very process: set its environment, if torch has not been loaded yet."""
    if "torch" not in sys.modules:
        os.environ.update(environment(spec))


def num_threads(spec: RunSpec) -> int:
    return max(1, int(spec.workers.cpus))


def pin(spec: RunSpec) -> None:
    """Fix threads, kernels and precision in this process."""
    import torch

    if not _before:
        _before.append(_settings())
    torch.set_num_threads(num_threads(spec))
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    if spec.determinism.mode == "bitwise":
        torch.use_deterministic_algorithms(True)
        # Made for finding bugs; it would write every fresh gradient twice.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def unpin() -> None:
    """Give the process back what it had before `pin` (a run in the caller's own process)."""
    import torch

    if not _before:
        return
    had = _before.pop()
    torch.set_num_threads(had.threads)
    torch.use_deterministic_algorithms(had.deterministic, warn_only=had.warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = had.fill  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = had.matmul_tf32
    torch.backends.cudnn.allow_tf32 = had.cudnn_tf32
    torch.backends.cudnn.benchmark = had.benchmark


class _Settings(NamedTuple):
    threads: int
    deterministic: bool
    warn_only: bool
    fill: bool
    matmul_tf32: bool
    cudnn_tf32: bool
    benchmark: bool


_before: list[_Settings] = []
"""What the process had when it was pinned; empty when it is not."""


def _settings() -> _Settings:
    import torch

    return _Settings(
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )


def choose_implementation(optimizer: torch.optim.Optimizer) -> str:
    """Loop, foreach and fused give three results: take fused where there is one, unless the recipe chose."""
    import torch

    fused = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
    chosen = []
    for group in optimizer.param_groups:
        free = group.get("fused") is None and group.get("foreach") is None
        plain = all(p.is_floating_point() for p in group["params"]) and not group.get("differentiable")
        if free and plain and type(optimizer) in fused:
            group["fused"], group["foreach"] = True, False
        chosen.append("fused" if group.get("fused") else "foreach" if group.get("foreach") else "loop")
    return f"{type(optimizer).__name__}({','.join(sorted(set(chosen)))})"


def fingerprint(spec: RunSpec, optimizer: str, device: torch.device) -> dict[str, str]:
    """The numeric fingerprint of this process, after `pin`."""
    import numpy
    import torch

    wanted = spec.determinism.isa
    found = torch.backends.cpu.get_cpu_capability()
    if wanted == "avx2" and found != "AVX2":
        raise UserError(
            f"determinism.isa: avx2 cannot be had here: torch runs with {found}.",
            "The instruction set is fixed when torch is loaded, or this processor has no AVX2.",
            "start god_ray before torch is imported (god-ray train), or drop determinism.isa.",
        )
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "cpu_vendor": _cpu_vendor(),
        "isa": found,
        "cpu_flags": "" if wanted else _cpu_flags(),
        "threads": torch.get_num_threads(),
        "mkl": torch._C.has_mkl,
        "mkl_cbwr": os.environ.get("MKL_CBWR", ""),
        "onednn": torch._C._has_mkldnn,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "optimizer": optimizer,
        "precision": spec.precision,
        "compile": spec.compile,
        "device": device.type,
    }
    if device.type == "cuda":
        facts |= {
            "gpu": torch.cuda.get_device_name(device),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        }
    return {key: str(value) for key, value in facts.items()}


def compare(run: dict[str, str], worker: dict[str, str], who: str) -> None:
    """Raises FingerprintMismatch naming every fact that differs, with both values."""
    differing = sorted(k for k in run.keys() | worker.keys() if run.get(k) != worker.get(k))
    if differing:
        listed = "; ".join(f"{k}: the run has {run.get(k)}, {who} has {worker.get(k)}" for k in differing)
        raise FingerprintMismatch(
            f"{who} would compute other bits than the run.",
            f"{listed}.",
            "use a like machine and the same versions; determinism.isa: avx2 from the start suits mixed "
            "processors, determinism: relaxed any.",
            differing=differing,
        )


# What oneDNN and MKL choose kernels by, beyond what torch calls the instruction set.
_FLAGS = ("avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")


def _cpu_vendor() -> str:
    return _cpuinfo("vendor_id") or platform.processor()


def _cpu_flags() -> str:
    flags = set(_cpuinfo("flags").split())
    return " ".join(flag for flag in _FLAGS if flag in flags)


def _cpuinfo(key: str) -> str:
    """The first processor's value, or "" where the system does not tell."""
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.split(":")[1].strip() for line in file if line.startswith(key)), "")
    except OSError:
        return ""
