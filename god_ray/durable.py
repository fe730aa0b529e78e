"""What is on disk stays there, whole, after a power cut too.

In: paths, text. Out: nothing. Failure shows as OSError, for the caller to name. Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: Path, text: str, work: Path) -> None:
    """`path` holds `text`, or what it held before. `work`: a name beside it for the time of writing."""
    with work.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    work.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """A file's content; of a folder, which names it holds."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
