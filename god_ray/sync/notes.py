"""What each worker says beside its gradient in every step, bit-cast into the same message.

A second small collective would cost as much as the first. Fields: where the worker is (step), what it read
(rows, checksum), what it lost (loss, weight per lane), which parameters had a gradient, what it asks for
(request, workers, a checkpoint due or written) and the hashes of the audit. numpy views over the message's
bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1


class Said(NamedTuple):
    """The single numbers, together, since each numpy access costs a microsecond or more in a cold cache.

    Signed 64-bit integers; hashes come in and out by `signed` and `unsigned`.
    """

    step: int = 0
    rows: int = 0
    checksum: int = 0
    request: int = 0
    workers: int = 0
    due: int = 0
    written: int = 0
    digest: int = 0
    audit_lane: int = -1
    audit_hash: int = 0


def signed(value: int) -> int:
    """64 bits as the signed integer with the same bits."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def unsigned(value: int) -> int:
    """The inverse of `signed`; also takes sums of signed values, modulo 2**64."""
    return value & _MASK


def notes_dtype(max_lanes: int, num_params: int, num_buffers: int, first_bytes: int) -> np.dtype[Any]:
    """One worker's record. `max_lanes`: most lanes of any worker; `first_bytes`: of non-float buffers."""
    return np.dtype(
        [
            ("said", "i8", (len(Said._fields),)),
            ("loss", "f8", (max_lanes,)),
            ("weight", "f8", (max_lanes,)),
            ("leaf_hash", "u8", (max_lanes,)),
            ("present", "u1", (num_params,)),
            ("changed", "u1", (num_buffers,)),
            ("first", "u1", (first_bytes,)),
        ],
        align=True,
    )


def at(message: NDArray[np.uint8], dtype: np.dtype[Any], offset: int, count: int, stride: int) -> Any:
    """`count` records inside `message`, the first at byte `offset`, each `stride` bytes after the last."""
    return np.ndarray((count,), dtype=dtype, buffer=message.data, offset=offset, strides=(stride,))
