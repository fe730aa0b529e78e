"""A file system's error in the words of a store: place, verb, object, cause.

In: an OSError on its way out. Out: the same kind of OSError, with the number it had, that says what was
going on; for a full disk or quota also how much was written and how much is free.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def named(doing: str, work: Path | None = None) -> Iterator[None]:
    """`doing`: `/runs/a: read of run.json`; `work`: the file that is being written."""
    try:
        yield
    except OSError as error:
        raise os_error(error.errno, f"{doing}: {_cause(error, work)}") from error


def os_error(number: int | None, text: str) -> OSError:
    """Of the kind that belongs to the number, if there is one."""
    return OSError(text) if number is None else OSError(number, text)


def _cause(error: OSError, work: Path | None) -> str:
    cause = error.strerror or str(error)
    if isinstance(error.filename, str | bytes):
        cause += f" ({os.fsdecode(error.filename)})"
    if error.errno in FULL and work is not None:
        with suppress(OSError):
            cause += f"; {work.stat().st_size:,} bytes of it were written"
            cause += f", {shutil.disk_usage(work.parent).free:,} bytes are free"
    return cause
