"""Steps per second of god_ray against DistributedDataParallel, as ratios, from one interleaved run.

Run: python bench/throughput.py [--quick] [--model small|large]. A round is one epoch of every contender,
in turns of a quarter of an epoch; ratios are taken within a round, so what else the machine does
cancels. Two processes, one thread each, Parquet in, ledger and checkpoints (one an epoch) on.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import contenders
import measure
import recipe
from turns import Team, Turn

NUM_ROWS = 100_000
TURNS = 4
Round = dict[str, Turn]


def god_ray_team(folder: Path, data: Path, widths: Sequence[int], lanes: int, size: int, mode: str) -> Team:
    from god_ray.runtime.assignment import prepare
    from god_ray.runtime.run_folder import RunFolder
    from god_ray.spec import load

    name = f"{mode}-L{lanes}-W{size}"
    steps = -(-NUM_ROWS // measure.BATCH_SIZE)
    fields: dict[str, Any] = {
        "epochs": 1000,
        "determinism": mode,
        "checkpoint": {"every_steps": steps, "every_s": None},
        "storage": str(folder),
    }
    loaded = load(measure.spec(data, widths, lanes, size, **fields), ["data.reader=direct"])
    run = RunFolder.create(folder, name, "", {"id": name, "state": "STARTING", "reason": "", "recoveries": 0})
    job = {"assignment": prepare(loaded, run.path), "run": run}
    return Team(f"god_ray {mode}, L = {lanes}, W = {size}", contenders.god_ray_loop, size, job)


def teams(folder: Path, data: Path, widths: Sequence[int], quick: bool) -> list[Team]:
    job = {"widths": list(widths), "data": str(data)}
    made = [
        Team("DDP + DataLoader, W = 2", contenders.loader, 2, job),
        Team("DDP in memory, W = 2", contenders.memory, 2, job),
    ]
    settings = [("bitwise", 2, 2), ("bitwise", 4, 2), ("relaxed", 2, 2), ("relaxed", 4, 2)]
    if not quick:
        fused = {**job, "fused": True}  # what god_ray chooses; a user of torch has to ask for it
        made.append(Team("DDP in memory, fused SGD, W = 2", contenders.memory, 2, fused))
        made.append(Team("DDP in memory, W = 1", contenders.memory, 1, job))
        settings += [("bitwise", 8, 2), ("bitwise", 2, 1), ("bitwise", 4, 1), ("bitwise", 8, 1)]
    return made + [god_ray_team(folder, data, widths, lanes, size, mode) for mode, lanes, size in settings]


def play(everyone: list[Team], rounds: int, num_steps: int) -> list[Round]:
    """Each round: everyone's epoch, in TURNS interleaved turns; the order is reversed every other time."""
    played = []
    cuts = [num_steps * i // TURNS for i in range(TURNS + 1)]
    for _ in range(rounds):
        total = {team.name: Turn(0.0, 0.0) for team in everyone}
        for i in range(TURNS):
            for team in everyone if i % 2 == 0 else everyone[::-1]:
                turn, before = team.turn(cuts[i + 1] - cuts[i]), total[team.name]
                total[team.name] = Turn(before.wall_s + turn.wall_s, before.cpu_s + turn.cpu_s)
        played.append(total)
    return played


def report(everyone: list[Team], played: list[Round], num_steps: int) -> None:
    against = ["DDP + DataLoader, W = 2", "DDP in memory, W = 2"]
    rows = []
    for team in everyone:
        ratios = [[r[base].wall_s / r[team.name].wall_s for r in played] for base in against]
        rate = median(num_steps / r[team.name].wall_s for r in played)
        cpu_ms = median(r[team.name].cpu_s for r in played) / num_steps * 1e3
        rows.append([team.name, *(measure.spread(r) for r in ratios), f"{rate:.0f}", f"{cpu_ms:.2f}"])
    columns = ["steps/s of", *(f"/ {base}" for base in against), "steps/s", "CPU ms a step"]
    measure.table(columns, rows)


def report_parts(folder: Path, everyone: list[Team], played: list[Round], num_steps: int) -> None:
    """Where a step's time goes, from the ledger (rank 0); the rest is the loop around the step."""
    from god_ray.monitor.ledger import Ledger

    parts, rows = ("data_s", "compute_s", "exchange_s", "optimizer_s"), []
    for team in everyone:
        if not team.name.startswith("god_ray"):
            continue
        run = team.name.removeprefix("god_ray ").replace(" = ", "").replace(", ", "-")
        timings = [r["timings"] for r in Ledger.read(folder / run / "ledger", num_steps + 1)]
        spent = [mean(t[part] for t in timings) * 1e6 for part in parts]
        whole = mean(r[team.name].wall_s for r in played) / num_steps * 1e6
        rows.append([team.name, *(f"{us:.0f}" for us in [*spent, whole - sum(spent), whole])])
    measure.table(["us a step", "data", "compute", "exchange", "optimizer", "rest", "whole"], rows)


def compare(title: str, widths: Sequence[int], quick: bool, rounds: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="god_ray-bench-"))
    num_steps = -(-NUM_ROWS // measure.BATCH_SIZE)
    everyone: list[Team] = []
    try:
        data = measure.write_data(folder / "train.parquet", NUM_ROWS)
        everyone = teams(folder, data, widths, quick)
        everyone = [team for team in everyone if team.ready()]
        play(everyone, 1, num_steps)
        played = play(everyone, rounds, num_steps)
        measure.heading(f"{title}, {rounds} rounds of {num_steps} steps: median (min-max)")
        report(everyone, played, num_steps)
        report_parts(folder, everyone, played, num_steps)
    finally:
        for team in everyone:
            team.close()
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer contenders and rounds")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--model", choices=["small", "large"], default=None, help="default: both")
    chosen = parser.parse_args()
    rounds = chosen.rounds or (3 if chosen.quick else 8)
    if chosen.model != "large":
        compare("MLP 64-256-256-10 (85k parameters)", recipe.SMALL, chosen.quick, rounds)
    if chosen.model != "small":
        compare("MLP 64-1024-1024-64-10 (1.2M parameters)", recipe.LARGE, chosen.quick, rounds)


if __name__ == "__main__":
    main()
