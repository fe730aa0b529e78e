"""A worker's life from a cursor to an outcome: step, publish the step before, evaluate, save, obey.

A step is committed when the optimizer has stepped, and published (ledger, checkpoint, report) when the next
exchange has completed, because then every worker has committed it. In: a `Step`, policies and ports. Out:
`Outcome`. All decisions come out of notes that every worker has, so all decide alike. Must not know Ray or
files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, time
from typing import Any

from god_ray.checkpoint.broken import refuse_broken
from god_ray.checkpoint.state import TrainState, View, digest, view
from god_ray.errors import AuditMismatch
from god_ray.loop.evaluate import Evaluation
from god_ray.loop.ports import Checkpoints, Control, Journal, Reporter
from god_ray.loop.reading import Reading
from god_ray.loop.step import Step
from god_ray.loop.stopping import Best
from god_ray.plan import Cursor, DataPlan
from god_ray.sync.exchange import Reduced
from god_ray.sync.group import Group
from god_ray.sync.notes import Said, signed

STOP, RESIZE = 1, 2
# Ray polls reports twice a second and holds back the next one until then: more would stall steps.
REPORT_EVERY_S = 2.0


@dataclass(frozen=True)
class Policy:
    """When things happen. Counts are steps; None means never."""

    num_steps: int
    digest_every: int
    eval_every: int | None
    """None: at each end of an epoch."""
    checkpoint_every: int | None
    checkpoint_every_s: float | None
    seed: int
    mixed: bool
    generation: int
    compare_states: bool = True
    """False where machines differ (`relaxed` only): the last bits of their states drift apart."""


@dataclass(frozen=True)
class Outcome:
    """`kind`: "succeeded", "stopped" or "resize" (then `workers` says to how many)."""

    kind: str
    reason: str
    step: int
    digest: str
    metrics: dict[str, Any] = field(default_factory=dict)
    workers: int = 0
    early: bool = False
    """`stop_when` ended it before its last step."""


class Loop:
    def __init__(
        self,
        policy: Policy,
        step: Step,
        state: TrainState,
        group: Group,
        evaluation: Evaluation | None,
        stop_when: Best | None,
        keep_best: Best | None,
        journal: Journal,
        checkpoints: Checkpoints,
        control: Control,
        reporter: Reporter,
    ) -> None:
        self.policy, self.step, self.state, self.group = policy, step, state, group
        self.evaluation, self.stop_when, self.keep_best = evaluation, stop_when, keep_best
        self.journal, self.checkpoints, self.control, self.reporter = journal, checkpoints, control, reporter
        self.plan: DataPlan = step.plan
        self.pending: dict[str, Any] | None = None
        self.metrics: dict[str, Any] = dict(state.extra.get("metrics", {}))
        self.reading = Reading(at_once=step.runner.device.type != "cpu")
        self.prepared = False
        self.saved_at = monotonic()
        self.reported, self.reported_at = 0, monotonic()

    def run(self, cursor: Cursor) -> Outcome:
        """Train from `cursor` to the last step, an early stop or a command."""
        try:
            return self._run(cursor)
        finally:
            self.reading.close()
            self.checkpoints.close()  # what failed does not take along the checkpoint before it
            self.step.feed.close()
            if self.evaluation is not None:
                self.evaluation.feed.close()

    def _run(self, cursor: Cursor) -> Outcome:
        self.step.feed.start(cursor, range(self.step.lo, self.step.hi))
        if cursor.step < self.policy.num_steps and self._stops_early():
            return self._close(self._outcome("succeeded", self._stops_early(), cursor))
        while cursor.step < self.policy.num_steps:
            reduced, record = self.step.run(cursor, self._tell, self._publish)
            self._report(reduced)
            cursor = self.plan.cursor_at(cursor.step + 1)
            self.pending = record
            outcome = self._boundary(cursor, reduced)
            if outcome is not None:
                return self._close(outcome)
        return self._close(self._outcome("succeeded", "all steps done", cursor))

    def _tell(self) -> Said:
        """What this worker has to tell the others, in the step that is being done."""
        request = self.control.poll()
        told = Said(digest=signed(self._short_digest()))
        if request is not None:
            told = told._replace(request=STOP if request.kind == "stop" else RESIZE, workers=request.workers)
        every_s = self.policy.checkpoint_every_s
        now = monotonic()
        due = every_s is not None and now - self.saved_at >= every_s
        written = self.checkpoints.written() or 0
        tell = now - self.reported_at >= REPORT_EVERY_S
        return told._replace(due=int(due), written=written if tell else 0)

    def _boundary(self, cursor: Cursor, reduced: Reduced) -> Outcome | None:
        """Everything that happens between two steps, decided from what all workers know."""
        assert self.pending is not None
        done, policy, request = cursor.step, self.policy, self._request(reduced)
        last = done == policy.num_steps
        better, outcome = False, None
        if self._evaluation_due(cursor, last):
            better = self._evaluate()
            if self._stops_early() and not last:
                outcome = ("succeeded", self._stops_early())
        if request and not last:
            kind = "stopped" if request == STOP else "resize"
            outcome = outcome or (kind, "asked to stop" if request == STOP else "asked to resize")
        every = policy.checkpoint_every
        save = (
            last
            or outcome
            or better
            or any(said.due for said in reduced.said)
            or bool(every and done % every == 0)
        )
        if save:
            self._save(cursor)
        elif done % policy.digest_every == 0:
            self.reading.begin(view(self.state))
        self._prepare()
        self.step.audit.plan_next(done)
        if outcome is None:
            return None
        return self._outcome(outcome[0], outcome[1], cursor, _asked_workers(reduced))

    def _stops_early(self) -> str:
        """Why, or "". Also true where a run is resumed that was killed after its early stop."""
        rule = self.stop_when
        if rule is None or not rule.exhausted:
            return ""
        return f"stop_when: no better {rule.metric} in {rule.patience} evaluations"

    def _request(self, reduced: Reduced) -> int:
        """What the leader was asked for; a resize to the size that there is asks for nothing."""
        request = max(said.request for said in reduced.said)
        same = _asked_workers(reduced) == self.group.size
        return 0 if request == RESIZE and same else request

    def _evaluation_due(self, cursor: Cursor, last: bool) -> bool:
        if self.evaluation is None:
            return False
        every = self.policy.eval_every
        return last or (cursor.step % every == 0 if every else cursor.step_in_epoch == 0)

    def _evaluate(self) -> bool:
        """Evaluate; True if a checkpoint must keep this state as the best so far."""
        assert self.evaluation is not None
        assert self.pending is not None
        self.metrics = self.pending["eval"] = self.evaluation.run(self.policy.seed, self.policy.mixed)
        if self.stop_when is not None:
            self.stop_when.better(self.metrics)
        return self.keep_best is not None and self.keep_best.better(self.metrics)

    def _save(self, cursor: Cursor) -> None:
        assert self.pending is not None
        refuse_broken(self.state.model, cursor.step)
        meta = {
            "step": cursor.step,
            "epoch": cursor.epoch,
            "eval": self.pending.get("eval"),
            "num_workers": self.group.size,
            "generation": self.policy.generation,
        }
        self.state.extra = {
            name: best.state()
            for name, best in (("stop_when", self.stop_when), ("keep_best", self.keep_best))
            if best is not None
        } | {"metrics": self.metrics}

        def save(still: View, found: str) -> None:
            self.checkpoints.save(cursor.step, still, meta | {"digest": found})

        self.reading.begin(view(self.state), save)
        self.saved_at, self.prepared = monotonic(), True

    def _prepare(self) -> None:
        """Once, in time for the first save."""
        if not self.prepared:
            self.prepared = True
            self.reading.afterwards(partial(self.checkpoints.prepare, view(self.state)))

    def _publish(self) -> None:
        """Every worker has committed the pending step: now it may be seen."""
        if self.pending is None:
            return
        self.reading.finish()
        record = self.pending | {"generation": self.policy.generation, "num_workers": self.group.size}
        record["at"] = round(time(), 3)
        self.journal.publish(record)
        self.checkpoints.publish(record["step"])
        self.pending = None

    def _report(self, reduced: Reduced) -> None:
        """All workers report the same checkpoint in the same step, once the leader has it on disk."""
        written = max(said.written for said in reduced.said)
        if written > self.reported:
            self.reported, self.reported_at = written, monotonic()
            self.journal.seal()
            self.reporter.report(written, self.metrics)

    def _close(self, outcome: Outcome) -> Outcome:
        """The last step has no next exchange: a barrier stands in for it."""
        state = outcome.digest if self.policy.compare_states else ""
        said = self.group.gather_bytes(json.dumps([outcome.step, state]).encode())
        if len(set(said)) > 1:
            raise AuditMismatch("workers end in different states.", f"They hold {said}.")
        self._publish()
        self.checkpoints.settle()
        self.group.barrier()  # a worker that cannot write its share raised before, and nobody waits for it
        self.checkpoints.drain()
        self.group.barrier()
        if outcome.step > self.reported:
            self.journal.seal()
            self.reporter.report(outcome.step, self.metrics)
        return outcome

    def _digest(self) -> str:
        """Of the state after the pending step, "" if nobody asked for it."""
        found = self.reading.digest()
        if found and self.pending is not None:
            self.pending["digest"] = found
        return found

    def _short_digest(self) -> int:
        found = self._digest()
        return int(found[:16], 16) if found and self.policy.compare_states else 0

    def _outcome(self, kind: str, reason: str, cursor: Cursor, workers: int = 0) -> Outcome:
        found = self._digest() or digest(self.state.model, self.state.optimizer)
        early = bool(self._stops_early())
        return Outcome(kind, reason, cursor.step, found, dict(self.metrics), workers, early)


def _asked_workers(reduced: Reduced) -> int:
    return max(said.workers for said in reduced.said)
