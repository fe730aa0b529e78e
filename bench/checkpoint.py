"""How long the step loop stands still for a checkpoint, and what it costs: against torch.save + report.

Run: python bench/checkpoint.py [--quick] [--rounds N] [--model small|large]. Both train the same MLP with
AdamW under a TorchTrainer with two workers on one Ray, in turns; the slower worker counts. "stands still":
within the loop. "wall", "CPU": what the steps from one save to the next take more than without any save, so
that work beside the loop is seen. A run's first save stands apart; its last is left out, there the run ends.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import measure
import recipe
from turns import THREADS

WORKERS, SAVES = 2, 5
SIZES = {
    "small": ("85k parameters, 1 MB", recipe.SMALL, measure.BATCH_SIZE, 40),
    "large": ("33M parameters, 400 MB", (64, *[2048] * 9, 10), 8, 10),
}
"""In words, widths, rows of a step, steps from save to save."""


def stock(config: dict[str, Any]) -> None:
    """Ray Train's worker, as its documentation has it."""
    import ray.train
    import torch
    from ray.train import Checkpoint
    from ray.train.torch import prepare_model
    from torch.nn import functional

    torch.set_num_threads(1)
    rank, rows = ray.train.get_context().get_world_rank(), config["rows"] // WORKERS
    model = prepare_model(recipe.network(config["widths"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = torch.randn(rows, measure.NUM_FEATURES), torch.randint(10, (rows,))
    still: list[float] = []
    marks: list[tuple[float, float]] = []
    for step in range(1, config["every"] * SAVES + 1):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % config["every"]:
            continue
        begin = perf_counter()
        marks.append((begin, process_time()))
        if not config["saves"]:
            continue
        with tempfile.TemporaryDirectory(dir=config["folder"]) as folder:
            checkpoint = None
            if rank == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, f"{folder}/state.pt")
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report({"step": step}, checkpoint=checkpoint)
        still.append(perf_counter() - begin)
    Path(f"{config['times']}-{rank}").write_text(json.dumps({"still": still, "marks": marks}))


def run_stock(folder: Path, job: dict[str, Any]) -> None:
    from ray.train import CheckpointConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    variables = {**THREADS, "PYTHONPATH": str(measure.FOLDER)}
    TorchTrainer(
        stock,
        train_loop_config=job,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(
            storage_path=str(folder),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            worker_runtime_env={"env_vars": variables},
        ),
    ).fit()


def run_god_ray(folder: Path, job: dict[str, Any], data: Path) -> None:
    import god_ray

    spec = measure.spec(
        data,
        job["widths"],
        WORKERS,
        WORKERS,
        recipe=str(measure.FOLDER / "checkpoint_recipe.py"),
        config={key: job[key] for key in ("widths", "times", "every")},
        batch_size=job["rows"],
        steps=job["every"] * SAVES,
        storage=str(folder),
        determinism={"digest_every": job["every"] * SAVES},  # those of saves only
        checkpoint={"every_steps": job["every"] if job["saves"] else None, "every_s": None, "keep": 1},
    )
    result = god_ray.train(spec)
    if result.state != "SUCCEEDED":
        raise RuntimeError(str(result.failure))


Costs = dict[str, list[float]]
"""Seconds by save: "stands still" and "wall" of the slower worker, "CPU" of both."""


def costs_of(with_saves: str, without: str) -> Costs:
    """Out of what a run with saves and one without have written down."""
    still = zip(*(told["still"][:-1] for told in _told(with_saves)), strict=True)
    costs = {"stands still": [max(seconds) for seconds in still]}
    for name, clock, over_workers in (("wall", 0, max), ("CPU", 1, sum)):
        each, usual = (_between_saves(times, clock, over_workers) for times in (with_saves, without))
        costs[name] = [seconds - median(usual) for seconds in each]
    return costs


def _between_saves(times: str, clock: int, over_workers: Callable[..., float]) -> list[float]:
    workers = [[b[clock] - a[clock] for a, b in pairwise(told["marks"])] for told in _told(times)]
    return [over_workers(seconds) for seconds in zip(*workers, strict=True)]


def _told(times: str) -> list[dict[str, Any]]:
    return [json.loads(Path(f"{times}-{rank}").read_text()) for rank in range(WORKERS)]


def measured(kind: str, place: Path, job: dict[str, Any], data: Path) -> Costs:
    """One run with saves, one without."""
    times = {saves: str(place / f"times-{saves}") for saves in (True, False)}
    for saves in times:
        here = place / f"saves-{saves}"
        here.mkdir(parents=True)
        told = {**job, "saves": saves, "folder": str(here), "times": times[saves]}
        if kind == "stock":
            run_stock(here, told)
        else:
            run_god_ray(here, told, data)
        shutil.rmtree(here)
    return costs_of(times[True], times[False])


def rows_of(size: str, folder: Path, data: Path, rounds: int) -> list[list[str]]:
    words, widths, rows, every = SIZES[size]
    found: dict[str, list[Costs]] = {"god_ray": [], "stock": []}
    job = {"widths": list(widths), "rows": rows, "every": every}
    for i in range(rounds):
        for kind in ("stock", "god_ray") if i % 2 == 0 else ("god_ray", "stock"):
            found[kind].append(measured(kind, folder / f"{kind}-{i}", job, data))
    cells = []
    for what in ("stands still", "wall", "CPU"):
        for name, part in (("first", slice(0, 1)), ("others", slice(1, None))):
            ours, theirs = ([s * 1000 for run in found[k] for s in run[what][part]] for k in found)
            ratio = f"{median(ours) / median(theirs):.3f}"
            cells.append([words, what, name, measure.spread(ours, 1), measure.spread(theirs, 1), ratio])
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="once")
    parser.add_argument("--model", choices=[*SIZES], help="one of them only")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(measure.FOLDER), os.environ.get("PYTHONPATH", "")])
    import ray

    ray.init(address="local", num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False)
    rows = []
    with tempfile.TemporaryDirectory(prefix="god_ray-bench-") as name:
        folder = Path(name)
        data = measure.write_data(folder / "train.parquet", 200 * measure.BATCH_SIZE)
        for size in [chosen.model] if chosen.model else SIZES:
            (folder / size).mkdir()
            rows += rows_of(size, folder / size, data, 1 if chosen.quick else chosen.rounds)
    ray.shutdown()
    measure.heading(f"Checkpoints: the cost of one, {WORKERS} workers; median (min-max)")
    measure.table(["", "", "saves", "god_ray (ms)", "torch.save + report (ms)", "ratio of medians"], rows)


if __name__ == "__main__":
    main()
