"""What went wrong first, in words, when a worker fails by an exception of the recipe's code or of a library.

In: exceptions as they are raised in a worker (`explained`), or as Ray wraps those of several
(`first_cause`). Out: a GodRayError that carries the traceback. A worker whose peer is gone fails too: it is
a victim, and never the cause.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from god_ray.errors import GodRayError, RunFailed

_VICTIMS = ("Connection closed by peer", "Connection reset", "Broken pipe", "Read error", "Write error")
FIX = "god-ray resume goes on with the run once the cause is gone."


def explained(error: Exception) -> GodRayError:
    """The exception with its place and traceback, fit to cross processes; a GodRayError as it is."""
    if isinstance(error, GodRayError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = "".join(traceback.format_exception(error, limit=-3)).rstrip()  # nearest to the fault
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    victim = any(word in said for word in _VICTIMS)
    return RunFailed(f"a worker failed: {said}{place}", text, FIX, victim=victim)


def first_cause(error: BaseException) -> GodRayError:
    """The error that started it, out of Ray's wrappings."""
    return first_of(getattr(error, "worker_failures", None) or {0: error})


def first_of(failures: Mapping[int, BaseException]) -> GodRayError:
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
        return RunFailed(f"worker {rank} died", f"{type(cause).__name__}: {cause}", FIX)
    return known[0]


def _unwrap(error: BaseException) -> BaseException:
    seen: set[int] = set()
    while id(error) not in seen and not isinstance(error, GodRayError):
        seen.add(id(error))
        inner = getattr(error, "cause", None) or getattr(error, "_base_exc", None) or error.__cause__
        if isinstance(inner, BaseException):
            error = inner
    return error
