"""One trial: a whole run in the trial's own process, which tells Tune each evaluation that is published.

In: a spec with the values that were drawn. Out: to Tune a score and the number of evaluations; to the disk a
run folder like any other. By law 2 its digest is the one that any number of workers would have. When Tune has
seen enough, the run stops at the next step boundary with a checkpoint. A failed run is raised into Tune.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ray.tune import Trainable

from god_ray.errors import Bug, GodRayError
from god_ray.loop.request import Request
from god_ray.monitor.ledger import Ledger
from god_ray.runtime import control
from god_ray.runtime.run_folder import RunFolder
from god_ray.sweep.ranking import score

if TYPE_CHECKING:
    from god_ray.api import Result
    from god_ray.monitor.lines import Follower

LOOK_EVERY_S = 0.05


def trial_name(number: int) -> str:
    return f"trial-{number:04d}"


class Trial(Trainable):  # type: ignore[misc]  # Ray has no types
    """`config`: "number" of the trial, "values" drawn for it, and the "order" that all trials share."""

    def setup(self, config: dict[str, Any]) -> None:
        order = config["order"]
        self.metric, self.mode = order["metric"], order["mode"]
        own = {"name": trial_name(config["number"]), "storage": order["folder"], "sweep": None}
        values = config["values"] | own | {"workers.min": 1, "workers.max": 1}
        drawn = (f"{key}={json.dumps(value)}" for key, value in values.items())
        self.spec, self.overrides = order["spec"], (*order["overrides"], *drawn)
        self.folder: RunFolder | None = None
        self.num_steps = 0
        self.follower: Follower | None = None
        self.evaluated: deque[dict[str, Any]] = deque()
        self.told: dict[str, Any] = {"evaluation": 0}
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._train, name="run", daemon=True)
        self.thread.start()

    def _train(self) -> None:
        from god_ray import api

        try:
            self.result = api.train(self.spec, debug=True, watch=self._watch, overrides=self.overrides)
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread, nothing is swallowed
            self.error = error
        self.ended.set()

    @contextmanager
    def _watch(self, folder: RunFolder, num_steps: int) -> Iterator[None]:
        self.folder, self.num_steps = folder, num_steps
        self.follower = Ledger.tail(folder.ledger)
        yield

    def step(self) -> dict[str, Any]:
        """Wait for the next evaluation. The last one is told when the run has ended."""
        while True:
            ended = self.ended.is_set()
            if self.follower is not None:
                self.evaluated += [record for record in self.follower.poll() if "eval" in record]
            last = len(self.evaluated) == 1 and self.evaluated[0]["step"] == self.num_steps
            if self.evaluated and (ended or not last):
                record = self.evaluated.popleft()
                self.told = {
                    "evaluation": self.told["evaluation"] + 1,
                    "score": score(record["eval"], self.metric, self.mode),
                    "value": record["eval"][self.metric],
                }
                return self.told | {"done": self._is_over()}
            if ended:
                return self.told | {"done": self._is_over()}
            self.ended.wait(LOOK_EVERY_S)

    def _is_over(self) -> bool:
        """Nothing more will come. Raises the cause if the run failed."""
        if not self.ended.is_set() or self.evaluated:
            return False
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise Bug("a trial ended without a result.")
        if self.result.state == "FAILED":
            raise self.result.failure or GodRayError(self.result.reason)
        return True

    def cleanup(self) -> None:
        """Tune has seen enough: stop at the next boundary, with a checkpoint, and wait for that."""
        early = not self.ended.is_set()
        while self.thread.is_alive():
            if self.folder is not None:  # again: a request sent before the run listens is not heard
                control.send(self.folder.control, Request("stop"))
            self.thread.join(0.5)
        if early and self.result is not None and self.result.state == "STOPPED" and self.folder is not None:
            told = self.told["evaluation"]
            self.folder.update(reason=f"given up by its sweep after {told} evaluation{'s' * (told != 1)}")
