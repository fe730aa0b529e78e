"""What each worker says beside its gradient in every step, bit-cast into the same message.

A second small collective would cost as much as the first. Fields: where the worker is (step), what it read
(rows, checksum), what it lost (loss, weight per lane), which parameters had a gradient, what it asks for
(request, workers, a checkpoint due or written) and the hashes of the audit. numpy views over the message's
bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def notes_dtype(max_lanes: int, num_params: int, num_buffers: int, first_bytes: int) -> np.dtype[Any]:
    """One worker's record. `max_lanes`: most lanes of any worker; `first_bytes`: of non-float buffers."""
    return np.dtype(
        [
            ("step", "i8"),
            ("rows", "i8"),
            ("checksum", "u8"),
            ("request", "i8"),
            ("workers", "i8"),
            ("due", "i8"),
            ("written", "i8"),
            ("digest", "u8"),
            ("audit_lane", "i8"),
            ("audit_hash", "u8"),
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
