"""Whose are the files that were left in the middle of a write, and which of them may go.

In: a folder of files named `<writer>-<pid>-<n>`. Out: those of dead writers are gone. A writer is a host and
its process numbers; of another host nothing is known, so what it left goes when it is a day old.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

OLD_S = 24 * 3600.0


def _writer() -> str:
    """This host; within it, containers that share its name but not its process numbers differ."""
    numbers = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()}-{numbers.stat().st_ino if numbers.exists() else 0}"


WRITER = _writer()


def sweep(folder: Path) -> None:
    for entry in os.scandir(folder):
        writer, _, pid = entry.name.rpartition("-")[0].rpartition("-")
        with suppress(OSError):  # swept by another writer, or another user's: no reason not to write
            ours = writer == WRITER and pid.isdigit()
            if (ours and not _alive(int(pid))) or time.time() - entry.stat().st_mtime > OLD_S:
                os.unlink(entry.path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives, as another user
        pass
    return True
