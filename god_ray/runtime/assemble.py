"""Builds a worker's loop out of an assignment: recipe, state, feeds, exchange, policies.

The local half (`build_local`) may fail on one worker alone; the shared half (`assemble`) makes all workers
agree on fingerprint, checkpoint and initial state before the first step. In: assignment, group, ports. Out:
a Loop and a cursor. Must not know Ray.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from god_ray.checkpoint.state import TrainState, digest, restore
from god_ray.checkpoint.store import CheckpointStore, Found
from god_ray.errors import CheckpointError, RecipeError
from god_ray.ingest.feed import Feed, open_feed
from god_ray.loop.audit import Audit
from god_ray.loop.evaluate import Evaluation
from god_ray.loop.leaf import LeafRunner
from god_ray.loop.loop import Loop, Policy
from god_ray.loop.ports import Checkpoints, Control, Exchange, Journal, Reporter
from god_ray.loop.seeding import BUILD, seed_generators
from god_ray.loop.step import Step
from god_ray.loop.stopping import Best
from god_ray.plan import Cursor, worker_lanes
from god_ray.recipe import Recipe, load_recipe
from god_ray.runtime import numerics
from god_ray.runtime.assignment import Assignment, load_preprocess
from god_ray.runtime.taken import Taken, words
from god_ray.runtime.weights import initialise
from god_ray.sync.ddp import RelaxedExchange, flags, wrap
from god_ray.sync.exchange import FixedOrderExchange
from god_ray.sync.group import Group

# Leaves have few sizes: two full ones, a tail's, a joined tail's; each in training and in evaluation.
MAX_GRAPHS = 64


@dataclass
class Local:
    """What a worker builds by itself."""

    assignment: Assignment
    device: torch.device
    recipe: Recipe
    state: TrainState
    model: nn.Module
    """What the loss is called with: `recipe.model`, or the compiled one."""
    fingerprint: dict[str, str]
    alike: bool = True
    """Whether all workers have the same fingerprint; always so in bitwise runs."""
    taken: Taken | None = None
    """What `init_from` gave, where no checkpoint had the say."""


@dataclass(frozen=True)
class Ports:
    journal: Journal
    checkpoints: Checkpoints
    control: Control
    reporter: Reporter


def build_local(assignment: Assignment, device: torch.device) -> Local:
    """Pin the numerics, build the recipe. Raises RecipeError and the like."""
    spec = assignment.spec
    numerics.pin(spec)
    seed_generators(BUILD, spec.seed)
    recipe = load_recipe(spec.recipe)(spec.config, assignment.fitted)
    numerics.pin(spec)  # again: whatever the recipe's own code has set
    recipe.model.to(device)
    implementation = numerics.choose_implementation(recipe.optimizer)
    state = TrainState(recipe.model, recipe.optimizer, recipe.schedule)
    model: Any = _compiled(recipe.model) if spec.compile else recipe.model
    return Local(assignment, device, recipe, state, model, numerics.fingerprint(spec, implementation, device))


def _compiled(model: nn.Module) -> Any:
    """One graph for each size of a leaf; falling back to eager in silence would change bits."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit, dynamo.fail_on_recompile_limit_hit = MAX_GRAPHS, True
    return torch.compile(model, dynamic=False)


def restore_newest(local: Local, group: Group, store: CheckpointStore) -> Found | None:
    """The newest intact checkpoint into the state; the same one on every worker, or CheckpointError."""
    found = store.newest_intact()
    step = 0 if found is None else found.step
    seen = [int(data) for data in group.gather_bytes(str(step).encode())]
    if len(set(seen)) > 1:
        raise CheckpointError(
            f"workers see different newest checkpoints: steps {seen} by rank.",
            f"{store.store.uri} is not the same folder for all of them, or it is changing.",
            "use storage that all nodes share.",
        )
    if found is not None:
        restore(found.snapshot, local.state)
    else:
        local.taken = initialise(local.recipe.model, local.assignment.spec)
    return found


def require_checkpoint(record: Mapping[str, Any], found: Found | None) -> None:
    """A run that has had a checkpoint never starts from scratch in silence."""
    if found is None and record.get("durable_step"):
        raise CheckpointError(
            f"no checkpoint is left of run {record['name']}.",
            f"Its newest one, of step {record['durable_step']}, and those before it have been removed.",
            "put them back, or start a new run under another name.",
        )


def require_ledger(last_step: int, found: Found | None) -> None:
    """The ledger must reach the checkpoint: its lines are durable before a checkpoint is."""
    if found is not None and last_step < found.step:
        raise CheckpointError(
            f"the ledger ends at step {last_step}, the checkpoint is of step {found.step}.",
            "Lines of published steps have been removed or damaged.",
            "restore the run's ledger folder from a copy; god-ray verify says what is left.",
        )


def origin(found: Found | None, published: int, taken: Taken | None) -> str:
    """Where training begins, what is done again, which damaged checkpoints were passed over: for a reason."""
    begin = 0 if found is None else found.step
    parts = [f" from step {begin}" if begin else ""]
    parts += [f"init_from: {words(asdict(taken))}"] if taken else []
    if published > begin:
        parts.append(f"steps {begin + 1} to {published} are done again and compared with the ledger")
    parts += [f"passed over {skipped}" for skipped in (found.skipped if found else ())]
    return "; ".join(parts)


def agree_on_state(local: Local, group: Group) -> str:
    """All workers start from the same bits. Returns their digest.

    Machines that differ (`relaxed` only) may draw other initial weights; DDP hands out the leader's.
    """
    mine = digest(local.recipe.model, local.recipe.optimizer)
    seen = [data.decode() for data in group.gather_bytes(mine.encode())]
    if len(set(seen)) > 1 and local.alike:
        raise RecipeError(
            "build(config) makes a different model in different processes.",
            f"Digests by rank: {seen}.",
            "use no randomness but torch's, numpy's and random's global generators (they are seeded before "
            "build), and nothing that depends on the process or the machine.",
        )
    return mine


def assemble(local: Local, group: Group, ports: Ports, found: Found | None, generation: int) -> Loop:
    """The loop of this worker."""
    assignment, spec, recipe = local.assignment, local.assignment.spec, local.recipe
    mixed, relaxed = spec.precision == "bf16-mixed", spec.determinism.mode == "relaxed"
    ranges = worker_lanes(spec.lanes, group.size)
    plan, preprocess = assignment.plan(), load_preprocess(assignment)
    feed = open_feed(
        assignment.train,
        plan,
        reader=spec.data.reader,
        preprocess=preprocess,
        collate=recipe.collate,
        memory_bytes=spec.data.memory_bytes,
        num_steps=assignment.num_steps,
    )
    runner = LeafRunner(recipe, local.model, spec.seed, local.device, mixed)
    cursor = plan.cursor_at(0 if found is None else found.step)
    exchange = _exchange(local, group, runner, ranges, feed, cursor)
    audit = Audit(feed, runner, ranges, group.rank, spec.determinism.digest_every, enabled=not relaxed)
    step = Step(
        plan, feed, runner, exchange, audit, group.rank, recipe.optimizer, recipe.schedule, spec.clip_norm
    )
    stop_when, keep_best = spec.stop_when, spec.checkpoint.keep_best
    stop = Best(stop_when.metric, stop_when.mode, stop_when.patience) if stop_when else None
    best = Best(keep_best.metric, keep_best.mode) if keep_best else None
    for rule, name in ((stop, "stop_when"), (best, "keep_best")):
        if rule is not None and found is not None and name in local.state.extra:
            rule.restore(local.state.extra[name])
    return Loop(
        _policy(local, generation),
        step,
        local.state,
        group,
        open_evaluation(local, group, runner, range(*ranges[group.rank]), preprocess),
        stop,
        best,
        ports.journal,
        ports.checkpoints,
        ports.control,
        ports.reporter,
    )


def _policy(local: Local, generation: int) -> Policy:
    spec = local.assignment.spec
    return Policy(
        num_steps=local.assignment.num_steps,
        digest_every=spec.determinism.digest_every,
        eval_every=None if spec.eval.every == "epoch" else int(spec.eval.every),
        checkpoint_every=spec.checkpoint.every_steps,
        checkpoint_every_s=spec.checkpoint.every_s,
        seed=spec.seed,
        mixed=spec.precision == "bf16-mixed",
        generation=generation,
        compare_states=local.alike,
    )


def _exchange(
    local: Local,
    group: Group,
    runner: LeafRunner,
    ranges: list[tuple[int, int]],
    feed: Feed,
    cursor: Cursor,
) -> Exchange:
    buffers, other = runner.buffers.templates, runner.buffers.other_bytes
    if local.assignment.spec.determinism.mode == "bitwise" or group.size == 1:
        templates = [*runner.parameters, *buffers]
        return FixedOrderExchange(group, templates, ranges, len(runner.parameters), other, local.device)
    lanes = range(*ranges[group.rank])
    done = cursor.step >= local.assignment.num_steps  # then there are no leaves to try
    ddp = wrap(local.model, local.device, not done and _has_unused(runner, feed, cursor, lanes, group))
    runner.model, runner.take = ddp, False
    runner.buffers.commit()
    templates = [*flags(runner.parameters), *buffers]
    small = FixedOrderExchange(group, templates, ranges, len(runner.parameters), other, local.device)
    return RelaxedExchange(ddp, runner.parameters, small)


def _has_unused(runner: LeafRunner, feed: Feed, cursor: Cursor, lanes: range, group: Group) -> bool:
    """DDP must know before the first step whether parameters may stay without a gradient: try some leaves."""
    feed.start(cursor, lanes)
    unused = False
    for lane in lanes:
        data = feed.leaf(cursor, lane)
        if data is not None:
            unused |= any(t is None for t in runner.run(cursor, lane, data, keep=False).tensors)
    runner.buffers.reset()
    return b"1" in group.gather_bytes(b"1" if unused else b"0")


def open_evaluation(
    local: Local, group: Group, runner: LeafRunner, lanes: range, preprocess: Any
) -> Evaluation | None:
    """Over the assignment's evaluation set, for these lanes; None if it has none."""
    plan, source = local.assignment.evaluation_plan(), local.assignment.evaluation
    if plan is None or source is None:
        return None
    data = local.assignment.spec.data
    feed: Feed = open_feed(
        source,
        plan,
        reader="direct",
        preprocess=preprocess,
        collate=local.recipe.collate,
        memory_bytes=data.memory_bytes,
        num_steps=plan.steps_per_epoch,
    )
    return Evaluation(local.recipe, runner, plan, feed, group, lanes)


def agree_on_fingerprint(local: Local, group: Group, stated: Mapping[str, str] | None) -> dict[str, str]:
    """`stated`: the run's, as rank 0 read it; None in a first attempt. Raises FingerprintMismatch on all."""
    message = json.dumps({"stated": dict(stated) if stated else None, "own": local.fingerprint})
    said = [json.loads(data.decode()) for data in group.gather_bytes(message.encode())]
    run = said[0]["stated"] or said[0]["own"]
    local.alike = all(other["own"] == said[0]["own"] for other in said)
    if local.assignment.spec.determinism.mode == "bitwise":
        for rank, other in enumerate(said):
            numerics.compare(run, other["own"], f"worker {rank}")
    return dict(run)
