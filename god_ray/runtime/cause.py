"""What went wrong first, in words, when a worker fails by an exception of the recipe's code or of a library.

In: exceptions as they are raised in a worker (`explained`), or as Ray wraps those of several
(`first_cause`). Out: a GodRayError that carries the traceback. A worker whose peer is gone fails too: it is
a victim, and never the cause.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from god_ray.errors import GodRayError, RunFailed

# What gloo and NCCL say, as RuntimeError, when a peer is gone.
_VICTIMS = (
    *("Connection closed by peer", "Connection reset", "Broken pipe", "Read error", "Write error"),
    *("Timed out waiting", "remote process exited", "NCCL error"),
)
_INNER = ("controller_failure", "cause", "_base_exc", "__cause__")
FIX = "god-ray resume goes on with the run once the cause is gone."


def explained(error: BaseException) -> GodRayError:
    """The exception with its place and traceback, fit to cross processes; a GodRayError as it is."""
    if isinstance(error, GodRayError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = "".join(traceback.format_exception(error, limit=-3)).rstrip()  # nearest to the fault
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    victim = isinstance(error, RuntimeError) and any(word in said for word in _VICTIMS)
    return RunFailed(f"a worker failed: {said}{place}", text, FIX, victim=victim)


def first_cause(error: BaseException) -> GodRayError:
    """The error that started it, out of Ray's wrappings."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        return _first_of(failures)
    cause = _unwrap(error)
    if isinstance(cause, GodRayError):
        return cause
    said = (str(cause).strip().splitlines() or [""])[0]
    return RunFailed(f"the workers do not start: {type(cause).__name__}: {said}", str(cause), FIX)


def _first_of(failures: Mapping[int, BaseException]) -> GodRayError:
    """Of errors by rank: a worker's own before its peers' lost lines."""
    ranks = sorted(failures)
    causes = [_unwrap(failures[rank]) for rank in ranks]
    known = [cause for cause in causes if isinstance(cause, GodRayError)]
    own = [cause for cause in known if not cause.data.get("victim")]
    if own:
        return own[0]
    dead = [(rank, cause) for rank, cause in zip(ranks, causes) if not isinstance(cause, GodRayError)]
    if dead:
        rank, cause = dead[0]
        return RunFailed(f"worker {rank} died", f"{type(cause).__name__}: {cause}", FIX, died=True)
    return known[0]


def _unwrap(error: BaseException) -> BaseException:
    seen: set[int] = set()
    while id(error) not in seen and not isinstance(error, GodRayError):
        seen.add(id(error))
        inner = next((e for e in (getattr(error, name, None) for name in _INNER) if e), None)
        if isinstance(inner, BaseException):
            error = inner
    return error
