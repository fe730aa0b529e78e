"""Does every worker compute the bits that the others would?

All workers apply the same reduced gradient, so equal states do not show a wrong leaf. At audit steps each
worker also recomputes one leaf of another worker, rotating, and the hashes are compared inside the same
message; so are the digests of the committed states. A difference is an AuditMismatch naming both workers
and the lane, before the step is applied. Must not know what causes it: silent corruption, another thread
count, a non-deterministic kernel.
"""

from __future__ import annotations

from typing import Any

from god_ray.errors import AuditMismatch
from god_ray.loop.leaf import LeafResult, LeafRunner
from god_ray.loop.ports import Feed
from god_ray.plan import Cursor
from god_ray.sync.exchange import Reduced
from god_ray.sync.notes import unsigned


class Audit:
    """`every` steps, and in the first step that a process does. `enabled=False` for `relaxed`."""

    def __init__(
        self,
        feed: Feed,
        runner: LeafRunner,
        ranges: list[tuple[int, int]],
        rank: int,
        every: int,
        enabled: bool,
    ) -> None:
        self.feed, self.runner, self.ranges, self.rank = feed, runner, ranges, rank
        self.every, self.enabled = every, enabled
        self.due = enabled
        self.own: dict[int, int] = {}

    def note_own(self, lane: int, result: LeafResult) -> None:
        """Called for each owned leaf of an audit step, before its tensors are summed."""
        self.own[lane] = result.bits()

    def take_notes(self, notes: Any, cursor: Cursor) -> tuple[int, int]:
        """In an audit step: hashes of the own leaves into the notes, and (lane, hash) of another's leaf."""
        if not self.due:
            return -1, 0
        lo, _ = self.ranges[self.rank]
        for lane, bits in self.own.items():
            notes["leaf_hash"][lane - lo] = bits
        lane = self.lane_to_check(cursor)
        data = self.feed.leaf(cursor, lane)
        self.own.clear()
        return (-1, 0) if data is None else (lane, self.runner.run(cursor, lane, data, keep=False).bits())

    def lane_to_check(self, cursor: Cursor) -> int:
        """A lane of another worker, both rotating from audit to audit; alone, a lane of its own."""
        turn, size = cursor.step // self.every, len(self.ranges)
        other = (self.rank + 1 + turn % max(1, size - 1)) % size
        lo, hi = self.ranges[other]
        return lo + turn % (hi - lo)

    def compare(self, reduced: Reduced, cursor: Cursor) -> None:
        """Raises AuditMismatch, on every worker alike."""
        digests = [unsigned(said.digest) for said in reduced.said]
        if any(digests) and len(set(digests)) > 1:
            raise AuditMismatch(
                f"workers hold different states after step {cursor.step}.",
                f"Hashes by rank: {[f'{d:016x}' for d in digests]}.",
                "the odd one out computed or kept other bits: check its memory, and its machine.",
            )
        if not self.due:
            return
        hashes = [int(h) for h in reduced.lane_values("leaf_hash")]
        for rank, said in enumerate(reduced.said):
            lane, found = said.audit_lane, unsigned(said.audit_hash)
            if lane >= 0 and found != hashes[lane]:
                owner = next(r for r, (lo, hi) in enumerate(self.ranges) if lo <= lane < hi)
                raise AuditMismatch(
                    f"worker {owner} and worker {rank} compute different bits for lane {lane} "
                    f"of step {cursor.step + 1}.",
                    f"Worker {owner}: {hashes[lane]:016x}, worker {rank}: {found:016x}.",
                    "one of them has other threads, another kernel or bad memory; an operation without a "
                    "deterministic kernel also shows so: god-ray check SPEC.",
                )

    def plan_next(self, next_step: int) -> None:
        """Decide whether `next_step` (0-based) is an audit step."""
        self.due = self.enabled and (next_step + 1) % self.every == 0
