"""Time and memory of one process, for the estimates of `god-ray check`.

In: something to call, or what a worker has built. Out: seconds and bytes. They are estimates of this
machine, now.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter

import torch

from god_ray.runtime.assemble import Local

BUDGET_S = 1.0
"""No more calls once so much time has been spent."""


def median_s(call: Callable[[], object], times: int, expected: tuple[type[Exception], ...] = ()) -> float:
    """Seconds of one call, of up to `times` after one to warm up; one of `expected` ends the series."""
    taken: list[float] = []
    begin = perf_counter()
    while len(taken) <= times and (len(taken) < 2 or perf_counter() - begin < BUDGET_S):
        start = perf_counter()
        try:
            call()
        except expected:
            break
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(perf_counter() - start)
    return median(taken[1:] or taken or [perf_counter() - begin])


def memory(local: Local, device: torch.device) -> dict[str, int]:
    """Bytes: the state's parts, a checkpoint's copy of it, and the most this process has had so far."""
    net, state = local.recipe.model, local.recipe.optimizer.state
    model = _bytes([*net.parameters(), *net.buffers()])
    gradients = _bytes(p for p in net.parameters() if p.requires_grad)
    entries = (value for entry in state.values() for value in entry.values())
    optimizer = _bytes(value for value in entries if isinstance(value, torch.Tensor))
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    found = {
        "model": model,
        "gradients": gradients,
        "optimizer": optimizer,
        "checkpoint_copy": model + optimizer,
        "process_peak": peak,
    }
    if device.type == "cuda":
        found["device_peak"] = torch.cuda.max_memory_allocated(device)
    return found


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
