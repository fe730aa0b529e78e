"""The same training as whole commands: real TorchTrainer runs of god_ray against stock Ray Train + Ray Data.

Run: python bench/trainers.py [--quick] [--model small|large]. Three epochs each, in turns. Wall time is
from the first batch to the end of the last epoch, so that starting is left out; it is also the cross-
check of throughput.py, where Ray is not in the way: steps/s here come from the ledger's times of the
epochs after the first.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

import commands
import measure
import recipe

NUM_ROWS, EPOCHS, WORKERS = 100_000, 3, 2
Times = tuple[float, float]
SETTINGS = {
    "god_ray bitwise, L = 2": (2, "bitwise"),
    "god_ray bitwise, L = 4": (4, "bitwise"),
    "god_ray relaxed, L = 4": (4, "relaxed"),
}
STOCK = "stock Ray Train + Ray Data"


def times(command: commands.Command) -> Times:
    """(seconds from the first batch to the end, steps/s after the first epoch)."""
    command.finish()
    records = command.records()
    end = records[-1]["at"]
    later = [record for record in records if record["epoch"] > 0]
    return end - records[0]["at"], (len(later) - 1) / (end - later[0]["at"])


def run(name: str, place: Path, data: Path, model: str) -> Times:
    if name == STOCK:
        return times(commands.stock(place, data, EPOCHS, WORKERS, model))
    lanes, mode = SETTINGS[name]
    widths = recipe.SMALL if model == "small" else recipe.LARGE
    spec = measure.spec(data, widths, lanes, WORKERS, epochs=EPOCHS, determinism=mode)
    return times(commands.god_ray(place, spec))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="once, L = 2 only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", choices=["small", "large"], default="small")
    chosen = parser.parse_args()
    names = [*list(SETTINGS)[: 1 if chosen.quick else None], STOCK]
    found: dict[str, list[Times]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="god_ray-bench-") as folder:
        data = measure.write_data(Path(folder) / "train.parquet", NUM_ROWS)
        for i in range(1 if chosen.quick else chosen.rounds):
            for name in names if i % 2 == 0 else names[::-1]:
                place = Path(folder) / f"{names.index(name)}-{i}"
                found[name].append(run(name, place, data, chosen.model))
    measure.heading(f"{EPOCHS} epochs under TorchTrainer, {chosen.model} model, {WORKERS} workers")
    rows = []
    for name in names:
        faster = [stock[0] / own[0] for own, stock in zip(found[name], found[STOCK])]
        wall = measure.spread([t[0] for t in found[name]], 1)
        rows.append([name, wall, measure.spread(faster), f"{median(t[1] for t in found[name]):.0f}"])
    columns = ["", "from the first batch to the end (s)", "times faster than stock", "steps/s after epoch 1"]
    measure.table(columns, rows)


if __name__ == "__main__":
    main()
