"""One save of one attempt: every worker writes its share, the leader makes a checkpoint of them.

In: a snapshot with a worker's tensors; then, from the leader, scalars and facts. Out: durable files, which
are a checkpoint once `finish` has written the manifest. Workers meet in the store: a worker that has written
its share says so in a small file, the leader waits for those. Failure shows as CheckpointError that says
what was needed; nothing half is ever taken for a checkpoint.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from god_ray.checkpoint import files
from god_ray.checkpoint.codec import encode
from god_ray.checkpoint.manifest import FileFact, Manifest, fact_of
from god_ray.checkpoint.share import Share
from god_ray.errors import CheckpointError
from god_ray.storage.store import Store, below, is_remote, write_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from god_ray.checkpoint.state import Snapshot

PATIENCE_S = 900.0
"""How long the leader waits for the other workers' shares. A worker that fails ends the run before that."""


class Saving:
    def __init__(self, store: Store, attempt: int, run: str, step: int) -> None:
        self._store, self._attempt, self._run, self._step = store, attempt, run, step
        self._place = below(store.uri, files.folder(step))

    def share(self, snapshot: Snapshot, share: Share) -> None:
        """Write a worker's tensors; durable when this returns."""
        facts = {}
        try:
            for part, tensors in (("model", snapshot.model), ("optimizer", snapshot.optimizer)):
                name = files.tensors(part, share, self._attempt)
                facts[name] = asdict(self._tensors(name, tensors))
            self._say(share, {"files": facts})
        except (OSError, SafetensorError) as error:
            with suppress(OSError):  # without this word the leader waits as for a worker that died
                self._say(share, {"failed": str(error)})
            raise self._unwritten(snapshot.num_bytes, error) from error

    def _say(self, share: Share, told: dict[str, Any]) -> None:
        self._text(files.facts(share, self._attempt), json.dumps(told))

    def finish(
        self,
        scalars: dict[str, Any],
        meta: dict[str, Any],
        count: int,
        given_up: threading.Event | None = None,
    ) -> None:
        """Make a checkpoint of `count` shares, once they are all there; `meta` has its digest.

        `given_up`: set when no more will come.
        """
        text = json.dumps(scalars, allow_nan=False)
        try:
            facts = self._shares(count, given_up or threading.Event())
            name = files.scalars(self._attempt)
            facts[name] = self._text(name, text)
            manifest = Manifest(
                step=self._step,
                attempt=self._attempt,
                run=self._run,
                digest=str(meta["digest"]),
                written_at=time.time(),
                meta=encode(meta, "meta"),
                files=facts,
            )
            self._text(Manifest.NAME, manifest.text())
        except OSError as error:
            raise self._unwritten(len(text), error) from error
        for index in range(count):
            with suppress(OSError):  # it is a checkpoint already; a later prune sweeps
                self._store.remove(files.path(self._step, files.facts(Share(index, count), self._attempt)))

    def _shares(self, count: int, given_up: threading.Event) -> dict[str, FileFact]:
        """Facts of all shares' files. Waits for those that are not there yet."""
        found: dict[str, FileFact] = {}
        deadline = time.monotonic() + PATIENCE_S
        pause_s = 0.5 if is_remote(self._store.uri) else 0.01
        for share in (Share(index, count) for index in range(count)):
            name = files.path(self._step, files.facts(share, self._attempt))
            while (told := self._told(name)) is None:
                if given_up.wait(pause_s) or time.monotonic() > deadline:
                    told = {"failed": "it did not come from its worker"}
                    break
            if "failed" in told:
                raise CheckpointError(
                    f"checkpoint {self._place} was not finished",
                    f"share {share} of the state is missing: {told['failed']}",
                    "resume: the previous checkpoints are untouched",
                    victim=True,
                )
            found |= {file: FileFact(**fact) for file, fact in told["files"].items()}
        return found

    def _told(self, name: str) -> dict[str, Any] | None:
        try:
            told: dict[str, Any] = json.loads(self._store.read(name))
        except FileNotFoundError:
            return None
        return told

    def _tensors(self, name: str, content: dict[str, Tensor]) -> FileFact:
        from god_ray.checkpoint import tensors

        facts: list[FileFact] = []

        def fill(path: Path) -> None:
            tensors.write(content, path)
            facts.append(fact_of(path))

        self._store.write(files.path(self._step, name), fill)
        return facts[0]

    def _text(self, name: str, text: str) -> FileFact:
        content = text.encode()
        write_bytes(self._store, files.path(self._step, name), content)
        return FileFact.of(content)

    def _unwritten(self, needed: int, error: Exception) -> CheckpointError:
        why, fix = f"{error} (needed about {needed:,} bytes", "make room or raise the quota"
        if is_remote(self._store.uri):
            fix = "look at the storage, its credentials and its quota"
        else:
            with suppress(OSError):
                why += f"; {shutil.disk_usage(self._store.uri).free:,} bytes free"
        return CheckpointError(
            f"checkpoint {self._place} could not be written",
            f"{why})",
            f"{fix}, then resume: the previous checkpoints are untouched",
            path=self._place,
            needed_bytes=needed,
        )
