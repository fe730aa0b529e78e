"""From the command to the first committed step: `god-ray train` against a stock Ray Train script, in turns.

Run: python bench/start.py [--quick]. Each starts its own Ray on this machine, two workers, the 85k
model, a Parquet file of ten batches. A step counts when another process can see it: a ledger line
(written when the next step has been exchanged), a line of the stock script.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import commands
import measure
import recipe

WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="once each")
    parser.add_argument("--rounds", type=int, default=4)
    chosen = parser.parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    firsts: dict[str, list[float]] = {"stock": [], "god_ray": []}
    wholes: dict[str, list[float]] = {"stock": [], "god_ray": []}
    with tempfile.TemporaryDirectory(prefix="god_ray-bench-") as name:
        folder = Path(name)
        data = measure.write_data(folder / "train.parquet", 10 * measure.BATCH_SIZE)
        spec = measure.spec(data, recipe.SMALL, 4, WORKERS, epochs=1)
        for i in range(rounds):
            for kind in ("stock", "god_ray") if i % 2 == 0 else ("god_ray", "stock"):
                place = folder / f"{kind}-{i}"
                if kind == "stock":
                    command = commands.stock(place, data, 1, WORKERS, "small")
                else:
                    command = commands.god_ray(place, spec)
                firsts[kind].append(command.first_step_s())
                wholes[kind].append(command.finish())
    measure.heading(f"Start: {rounds} alternating starts of each, median (min-max)")
    rows = []
    for what, times in (("to the first step", firsts), ("to the end of the command", wholes)):
        ratios = [g / s for g, s in zip(times["god_ray"], times["stock"])]
        cells = [
            measure.spread(times["god_ray"], 1),
            measure.spread(times["stock"], 1),
            measure.spread(ratios),
        ]
        rows.append([what, *cells])
    measure.table(["from the command", "god-ray train (s)", "stock Ray Train (s)", "ratio"], rows)


if __name__ == "__main__":
    main()
