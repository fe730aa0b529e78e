"""Snapshots kept in a run's folder: visible only when whole, and checked whenever they are read.

In: snapshots and the run's facts about them. Out: the newest intact one, naming what was passed over and why.
`step-00001200/` holds each worker's tensors, state.*.json and, written last, manifest.json, which names them.
Must not know what snapshots hold, or when to save. Failure shows as CheckpointError, never as a fresh start.
Torch is imported inside the verbs that touch tensors, so listing checkpoints stays light.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from safetensors import SafetensorError

from god_ray.checkpoint import files
from god_ray.checkpoint.codec import decode
from god_ray.checkpoint.manifest import Manifest, NotIntact, OtherFormat, Unfinished
from god_ray.checkpoint.saving import Saving
from god_ray.checkpoint.share import WHOLE
from god_ray.errors import Bug, CheckpointError
from god_ray.storage.store import Store, below, is_remote

if TYPE_CHECKING:
    from torch import Tensor

    from god_ray.checkpoint.state import Snapshot


class Found(NamedTuple):
    """A checkpoint that was read and checked; `skipped` says in words what newer ones were passed over."""

    step: int
    snapshot: Snapshot
    meta: dict[str, Any]
    skipped: list[str]


class CheckpointStore:
    """The checkpoints in `store`, seen by attempt number `attempt` of the run whose identity is `run`.

    Those that name another `run` are foreign: neither chosen, counted nor removed. "" takes all for its own.
    One attempt writes at a time; any number of readers.
    """

    def __init__(self, store: Store, attempt: int, run: str = "") -> None:
        self.store, self.attempt, self.run = store, attempt, run
        self._saved = 0

    def place(self, step: int) -> str:
        return below(self.store.uri, files.folder(step))

    def saving(self, step: int) -> Saving:
        return Saving(self.store, self.attempt, self.run, step)

    def write(self, step: int, snapshot: Snapshot, meta: dict[str, Any]) -> str:
        """Save a whole snapshot durably; returns its place. CheckpointError if that fails."""
        digest = snapshot.digest()
        if meta.get("digest", digest) != digest:
            raise Bug(
                f"the digest of step {step} is {meta['digest']}, that of its snapshot is {digest}",
                "digest and snapshot were not taken at the same moment",
                "take both at the step boundary, after the schedule has stepped",
            )
        saving = self.saving(step)
        saving.share(snapshot, WHOLE)
        saving.finish(snapshot.scalars, {**meta, "digest": digest}, WHOLE.count)
        self.written(step)
        return self.place(step)

    def written(self, step: int) -> None:
        """This attempt's checkpoint of `step` is whole: the run is there."""
        self._saved = step

    def steps(self) -> list[int]:
        """Steps of this run's checkpoints, ascending: those with a sound manifest. Reads no other file."""
        return [step for step in self._folders() if self._sound(step) is not None]

    def meta(self, step: int) -> dict[str, Any]:
        """What `write` was told about it, from the manifest alone."""
        try:
            return _meta(self._manifest(step))
        except (NotIntact, OtherFormat) as fault:
            raise _damaged(self.place(step), fault) from fault

    def load(self, step: int) -> tuple[Snapshot, dict[str, Any]]:
        """Read one, checking size and hash of every file and the digest of the whole."""
        try:
            return self._load(step)
        except (NotIntact, OtherFormat) as fault:
            raise _damaged(self.place(step), fault) from fault

    def newest_intact(self) -> Found | None:
        """The newest checkpoint that passes every check. None only if no save was ever finished here.

        CheckpointError if there are checkpoints but none is usable, or if one is of another format: to go
        back behind that one would silently fork the run.
        """
        skipped: list[str] = []
        finished = False
        for step in reversed(self._folders()):
            try:
                snapshot, meta = self._load(step)
            except NotIntact as fault:
                skipped.append(f"{files.folder(step)}: {fault}")
                finished |= not isinstance(fault, Unfinished)
            except OtherFormat as fault:
                raise _damaged(self.place(step), fault) from fault
            else:
                return Found(step, snapshot, meta, skipped)
        if not finished:
            return None
        raise CheckpointError(
            f"no intact checkpoint is left under {self.store.uri}",
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
        folders = self._folders()
        looks = {step: self._look(step, there) for step, there in folders.items()}
        whole = [step for step, look in looks.items() if isinstance(look, Manifest)]
        protected = protect | {self._saved}  # even behind higher numbers: this is where the run is
        oldest_kept = whole[-keep:][0] if whole else 0
        gone = [
            step
            for step, look in looks.items()
            if (isinstance(look, Manifest) or look == "damaged")
            and step < oldest_kept
            and step not in protected
        ]
        for step in gone:  # its manifest first, so that nobody ever takes one for whole that is half removed
            self._remove(step, sorted(folders[step], key=lambda name: name != Manifest.NAME))
        for step in folders.keys() - set(gone):
            self._remove(step, self._left(step, folders[step], looks[step]))
        return gone

    def verify(self) -> dict[int, str]:
        """What is wrong with each checkpoint that is not intact, by step; reads everything.

        A folder without a manifest is none: it is being written or removed, or that was never finished.
        """
        problems = {}
        for step in self._folders():
            try:
                self._load(step)
            except (NotIntact, OtherFormat) as fault:
                if Manifest.NAME in self._folders().get(step, ()):
                    problems[step] = str(fault)
        return problems

    # ---- inside

    def _folders(self) -> dict[int, dict[str, int]]:
        """Every folder with a checkpoint's name, damaged or not, ascending by number (not by text)."""
        try:
            return files.by_step(self.store.list())
        except OSError as error:
            raise _unreadable(self.store.uri, error) from error

    def _manifest(self, step: int) -> Manifest:
        name = Manifest.NAME
        try:
            manifest = Manifest.parse(self.store.read(files.path(step, name)))
        except FileNotFoundError:
            raise Unfinished(f"{name} is missing (a save that was not finished)") from None
        except OSError as error:
            raise self._unreadable(name, error) from error
        if manifest.step != step:
            raise NotIntact(f"the folder is named for step {step}, its manifest says {manifest.step}")
        return manifest

    def _unreadable(self, name: str, error: OSError) -> Exception:
        """On a disk that is damage; a store that does not answer must not make a run go back."""
        if is_remote(self.store.uri):
            return _unreadable(self.store.uri, error)
        return NotIntact(f"{name} cannot be read: {error.strerror}")

    def _sound(self, step: int) -> Manifest | None:
        """Its manifest, if that is unaltered and this run's."""
        try:
            manifest = self._manifest(step)
        except (NotIntact, OtherFormat):
            return None
        return manifest if self._ours(manifest) else None

    def _ours(self, manifest: Manifest) -> bool:
        return not self.run or manifest.run in ("", self.run)

    def _look(
        self, step: int, there: dict[str, int]
    ) -> Manifest | Literal["damaged", "unfinished", "foreign"]:
        """At a glance, without reading tensors; the manifest of a whole one. One of another format is
        foreign: not ours to judge.
        """
        if Manifest.NAME not in there:
            return "unfinished"
        try:
            manifest = self._manifest(step)
            if not self._ours(manifest):
                return "foreign"
            manifest.check_sizes(there)
        except NotIntact:
            return "damaged"
        except OtherFormat:
            return "foreign"
        return manifest

    def _load(self, step: int) -> tuple[Snapshot, dict[str, Any]]:
        from god_ray.checkpoint.state import Snapshot

        manifest = self._manifest(step)
        if not self._ours(manifest):
            raise NotIntact(f"belongs to another run ({manifest.run})")
        model: dict[str, Tensor] = {}
        optimizer: dict[str, Tensor] = {}
        scalars: dict[str, Any] = {}
        parts = {"model": model, "optimizer": optimizer, "state": scalars}
        for name in manifest.files:
            if files.part(name) not in parts:
                raise NotIntact(f"its manifest names {name}, which is no part of a checkpoint")
            parts[files.part(name)].update(self._file(manifest, step, name))
        snapshot = Snapshot(model, optimizer, scalars)
        if snapshot.digest() != manifest.digest:
            raise NotIntact(f"its digest is {snapshot.digest()}, its manifest says {manifest.digest}")
        return snapshot, _meta(manifest)

    def _file(self, manifest: Manifest, step: int, name: str) -> dict[str, Any]:
        """The content of a file that is what its manifest says."""
        from god_ray.checkpoint import tensors

        try:
            with self.store.fetch(files.path(step, name)) as path:
                manifest.check_file(name, path)
                if name.endswith(".safetensors"):
                    return tensors.read(path)
                return dict(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            raise NotIntact(f"{name} is missing") from None
        except OSError as error:
            raise self._unreadable(name, error) from error
        except SafetensorError as error:
            raise NotIntact(f"{name} cannot be read: {error}") from error

    def _remove(self, step: int, names: Iterable[str]) -> None:
        try:
            for name in names:
                self.store.remove(files.path(step, name))
        except OSError as error:
            raise CheckpointError(
                f"could not remove what is old in {self.place(step)}",
                f"{error.strerror or error}",
                "check the permissions there",
            ) from error

    def _left(self, step: int, there: dict[str, int], look: Manifest | str) -> list[str]:
        """By dead saves; a later attempt's files, and of this one's what may be in progress, stay."""
        if isinstance(look, Manifest):
            kept = {Manifest.NAME, *look.files}
        else:
            kept = set() if look == "unfinished" else set(there)

        def dead(attempt: int | None) -> bool:
            ended = step <= self._saved and attempt == self.attempt
            return attempt is not None and (attempt < self.attempt or ended)

        return [name for name in there.keys() - kept if dead(files.attempt(name))]


def _meta(manifest: Manifest) -> dict[str, Any]:
    meta: dict[str, Any] = decode(manifest.meta)
    return meta


def _unreadable(place: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"checkpoints in {place} cannot be read",
        f"{error.strerror or error}",
        "look at the storage and its credentials, then resume",
    )


def _damaged(place: str, fault: Exception) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {place} cannot be used",
        str(fault),
        "use another step, or the version of god_ray that wrote it"
        if isinstance(fault, OtherFormat)
        else "use another step, or restore the folder from a backup",
        path=place,
    )
