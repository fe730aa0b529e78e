"""Checkpoints of one run in a folder: one is visible only when whole, and checked whenever it is read.

In: snapshots and the run's facts about them. Out: the newest intact one, naming what was passed over and why.
`step-00001200/` holds model.safetensors, optimizer.safetensors, state.json and, written last, manifest.json.
Must not know what snapshots hold, or when to save. Failure shows as CheckpointError, never as a fresh start.
Torch is imported inside the verbs that touch tensors, so listing checkpoints stays light.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from safetensors import SafetensorError

from god_ray import durable
from god_ray.checkpoint.codec import decode, encode
from god_ray.checkpoint.manifest import FileFact, Manifest, NotIntact, OtherFormat, fact_of
from god_ray.errors import Bug, CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from god_ray.checkpoint.state import Snapshot

_FOLDER = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(r"step-\d{8,}\.(\d+)(\.old)?\.tmp")


class Found(NamedTuple):
    """A checkpoint that was read and checked; `skipped` says in words what newer ones were passed over."""

    step: int
    snapshot: Snapshot
    meta: dict[str, Any]
    skipped: list[str]


class CheckpointStore:
    """The checkpoints under `root`, seen by attempt number `attempt` of the run whose identity is `run`.

    Those that name another `run` are foreign: neither chosen, counted nor removed. "" takes all for its own.
    One writer at a time (the run's); any number of readers.
    """

    def __init__(self, root: Path, attempt: int, run: str = "") -> None:
        self.root, self.attempt, self.run = Path(root), attempt, run
        self._writing: Path | None = None
        self._saved: int | None = None

    def path(self, step: int) -> Path:
        return self.root / f"step-{step:08d}"

    def write(self, step: int, snapshot: Snapshot, meta: dict[str, Any]) -> Path:
        """Save durably (fsync); returns the final path. CheckpointError if that fails: nothing half is left.

        An intact one of the same step and digest is kept as it is; any other in its place is replaced.
        """
        final = self.path(step)
        work = self.root / f"{final.name}.{self.attempt}.tmp"
        self._writing = work
        try:
            shutil.rmtree(work, ignore_errors=True)  # of this very attempt: a save that failed
            work.mkdir(parents=True)
            manifest = self._fill(work, step, snapshot, meta)
            if not self._has(step, manifest.digest):
                self._expose(work, final)
        except (OSError, SafetensorError) as error:
            raise _unwritten(final, snapshot.num_bytes, error) from error
        else:
            self._saved = step
        finally:
            shutil.rmtree(work, ignore_errors=True)
            self._writing = None
        return final

    def steps(self) -> list[int]:
        """Steps of this run's checkpoints, ascending: those with a sound manifest. Reads no other file."""
        return [step for step, path in self._folders() if self._sound(path) is not None]

    def meta(self, step: int) -> dict[str, Any]:
        """What `write` was told about it, from the manifest alone."""
        try:
            return _meta(Manifest.read(self.path(step)))
        except (NotIntact, OtherFormat) as fault:
            raise _damaged(self.path(step), fault) from fault

    def load(self, step: int) -> tuple[Snapshot, dict[str, Any]]:
        """Read one, checking size and hash of every file and the digest of the whole."""
        try:
            return self._load(step)
        except (NotIntact, OtherFormat) as fault:
            raise _damaged(self.path(step), fault) from fault

    def newest_intact(self) -> Found | None:
        """The newest checkpoint that passes every check. None only if there never was one to be seen here.

        CheckpointError if there are checkpoints but none is usable, or if one is of another format: to go
        back behind that one would silently fork the run.
        """
        skipped: list[str] = []
        for step, path in reversed(self._folders()):
            try:
                snapshot, meta = self._load(step)
            except NotIntact as fault:
                skipped.append(f"{path.name}: {fault}")
            except OtherFormat as fault:
                raise _damaged(path, fault) from fault
            else:
                return Found(step, snapshot, meta, skipped)
        if not skipped:
            return None
        raise CheckpointError(
            f"no intact checkpoint is left under {self.root}",
            "; ".join(skipped),
            "restore one of them from a backup; to start over on purpose, start a run of another name",
            skipped=skipped,
        )

    def prune(self, keep: int, protect: set[int]) -> list[int]:
        """Remove all but the newest `keep` whole ones and `protect`; also what dead saves left. Save first.

        A damaged one (by size) does not count; those newer than the oldest kept one stay, as evidence.
        Returns the steps removed. One that somebody else removed is no error.
        """
        if keep < 1:
            raise Bug(f"prune(keep={keep})", "the newest checkpoint must stay", "pass keep >= 1")
        self._sweep()
        looks = [(step, path, self._look(path)) for step, path in self._folders()]
        whole = [step for step, _, look in looks if look == "whole"]
        if not whole:
            return []
        oldest_kept = whole[-keep:][0]
        protected = protect | {self._saved}  # even behind higher numbers: this is where the run is
        return [
            step
            for step, path, look in looks
            if look != "foreign" and step < oldest_kept and step not in protected and self._remove(path)
        ]

    def verify(self) -> list[str]:
        """One sentence per checkpoint that is not intact; reads everything."""
        problems = []
        for step, path in self._folders():
            try:
                self._load(step)
            except (NotIntact, OtherFormat) as fault:
                problems.append(f"{path.name}: {fault}")
        return problems

    # ---- reading

    def _folders(self) -> list[tuple[int, Path]]:
        """Every folder with a checkpoint's name, damaged or not, ascending by number (not by text)."""
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        matches = ((_FOLDER.fullmatch(name), self.root / name) for name in names)
        return sorted((int(match[1]), path) for match, path in matches if match and path.is_dir())

    def _sound(self, path: Path) -> Manifest | None:
        """Its manifest, if that is unaltered and this run's."""
        try:
            manifest = Manifest.read(path)
        except (NotIntact, OtherFormat):
            return None
        return manifest if self._ours(manifest) else None

    def _ours(self, manifest: Manifest) -> bool:
        return not self.run or manifest.run in ("", self.run)

    def _look(self, path: Path) -> Literal["whole", "damaged", "foreign"]:
        """At a glance, without reading tensors. One of another format is foreign: not ours to judge."""
        try:
            manifest = Manifest.read(path)
            if not self._ours(manifest):
                return "foreign"
            manifest.check_sizes(path)
        except NotIntact:
            return "damaged"
        except OtherFormat:
            return "foreign"
        return "whole"

    def _load(self, step: int) -> tuple[Snapshot, dict[str, Any]]:
        from god_ray.checkpoint import tensors
        from god_ray.checkpoint.state import Snapshot

        path = self.path(step)
        manifest = Manifest.read(path)
        if not self._ours(manifest):
            raise NotIntact(f"belongs to another run ({manifest.run})")
        if manifest.step != step:
            raise NotIntact(f"the folder is named for step {step}, its manifest says {manifest.step}")
        manifest.check_files(path)
        model: dict[str, Tensor] = {}
        optimizer: dict[str, Tensor] = {}
        for name in manifest.files:
            if name.endswith(".safetensors"):  # by prefix: a part may come in several shards
                (model if name.startswith("model") else optimizer).update(tensors.read(path / name))
        snapshot = Snapshot(model, optimizer, json.loads((path / "state.json").read_text("utf-8")))
        if snapshot.digest() != manifest.digest:
            raise NotIntact(f"its digest is {snapshot.digest()}, its manifest says {manifest.digest}")
        return snapshot, _meta(manifest)

    def _has(self, step: int, digest: str) -> bool:
        path = self.path(step)
        if not path.exists():
            return False
        try:
            manifest = Manifest.read(path)
            manifest.check_files(path)
        except (NotIntact, OtherFormat):
            return False
        return (manifest.step, manifest.digest, manifest.run) == (step, digest, self.run)

    # ---- writing

    def _fill(self, work: Path, step: int, snapshot: Snapshot, meta: dict[str, Any]) -> Manifest:
        from god_ray.checkpoint import tensors

        digest = snapshot.digest()
        if meta.get("digest", digest) != digest:
            raise Bug(
                f"the digest of step {step} is {meta['digest']}, that of its snapshot is {digest}",
                "digest and snapshot were not taken at the same moment",
                "take both at the step boundary, after the schedule has stepped",
            )
        tensors.write(snapshot.model, work / "model.safetensors")
        tensors.write(snapshot.optimizer, work / "optimizer.safetensors")
        (work / "state.json").write_text(json.dumps(snapshot.scalars, allow_nan=False), "utf-8")
        names = ("model.safetensors", "optimizer.safetensors", "state.json")
        facts: dict[str, FileFact] = {}
        for name in names:
            durable.sync(work / name)
            facts[name] = fact_of(work / name)
        manifest = Manifest(
            step=step,
            attempt=self.attempt,
            run=self.run,
            digest=digest,
            written_at=time.time(),
            meta=encode(meta, "meta"),
            files=facts,
        )
        durable.sync(work)
        manifest.write(work)
        durable.sync(work / Manifest.NAME)
        durable.sync(work)
        return manifest

    def _expose(self, work: Path, final: Path) -> None:
        replaced = None
        if final.exists():  # damaged, or of another trajectory; a folder cannot be renamed over a full one
            replaced = self.root / f"{final.name}.{self.attempt}.old.tmp"
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(final, replaced)
        os.rename(work, final)
        durable.sync(self.root)
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)

    def _remove(self, path: Path) -> bool:
        """Out of sight first, so that nobody ever reads one that is half removed."""
        grave = self.root / f"{path.name}.{self.attempt}.old.tmp"
        shutil.rmtree(grave, ignore_errors=True)
        try:
            os.rename(path, grave)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise CheckpointError(
                f"could not remove the old checkpoint {path}", str(error), "check the folder's permissions"
            ) from error
        shutil.rmtree(grave, ignore_errors=True)  # what stays is swept the next time
        return True

    def _sweep(self) -> None:
        """Leftovers of this attempt and earlier ones; a later attempt's are its own business."""
        for path in self._leftovers():
            if path != self._writing:
                shutil.rmtree(path, ignore_errors=True)

    def _leftovers(self) -> Iterator[Path]:
        if self.root.is_dir():
            for name in os.listdir(self.root):
                match = _LEFTOVER.fullmatch(name)
                if match and int(match[1]) <= self.attempt:
                    yield self.root / name


def _meta(manifest: Manifest) -> dict[str, Any]:
    meta: dict[str, Any] = decode(manifest.meta)
    return meta


def _unwritten(final: Path, needed: int, error: Exception) -> CheckpointError:
    try:
        free = f"{shutil.disk_usage(final.parent).free:,} bytes free"
    except OSError:
        free = "free space unknown"
    return CheckpointError(
        f"checkpoint {final} could not be written",
        f"{error} (needed about {needed:,} bytes; {free})",
        "make room or raise the quota, then resume: the previous checkpoints are untouched",
        path=str(final),
        needed_bytes=needed,
    )


def _damaged(path: Path, fault: Exception) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} cannot be used",
        str(fault),
        "use another step, or the version of god_ray that wrote it"
        if isinstance(fault, OtherFormat)
        else "use another step, or restore the folder from a backup",
        path=str(path),
    )
