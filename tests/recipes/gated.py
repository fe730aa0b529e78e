"""The zoo, with updates that wait: `gates: {7: path}` holds update 7 of every worker until the file is there.

A gate is how a test knows where a run is when it kills or asks something. The numbers are the zoo's.
`fails: s` raises in update s of every worker; with `once: path`, each worker does it once.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import zoo

import god_ray

DEADLINE_S = 120.0


def build(config: dict) -> god_ray.Recipe:
    recipe = zoo.build(config)
    optimizer = recipe.optimizer
    last = list(recipe.model.parameters())[-1]
    once = Path(f"{config['once']}-{os.environ.get('RANK', 'driver')}") if "once" in config else None
    gates = {int(step): Path(path) for step, path in config["gates"].items()}

    def wait(*_: object) -> None:
        update = int(optimizer.state.get(last, {}).get("step", 0)) + 1
        if update == config.get("fails") and not (once and once.exists()):
            if once:
                once.touch()
            raise ArithmeticError(f"update {update} cannot be")
        gate = gates.get(update)
        deadline = time.monotonic() + DEADLINE_S
        while gate is not None and not gate.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{gate} was not opened")
            threading.Event().wait(0.02)

    optimizer.register_step_pre_hook(wait)
    return recipe
