"""The one place where a sweep meets `ray.tune`: what is drawn, when a trial is given up, what came back.

In: a spec, its sweep, the order that trials share. Out: a row per trial, errors, whether Ctrl-C ended it.
Values follow from the seed. No more trials run at a time than the cluster can hold whole. Every trial's run
has a final state afterwards, also when its process was killed.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from god_ray.errors import GodRayError
from god_ray.monitor.newest import newest
from god_ray.monitor.words import number, printable
from god_ray.runtime.cause import first_cause
from god_ray.runtime.cluster import in_environment
from god_ray.runtime.run_folder import FINAL, RunFolder
from god_ray.spec import Asha, Distribution, RunSpec, Sweep
from god_ray.sweep.ranking import Row
from god_ray.sweep.trial import Trial, trial_name

NO_END = 10**9
QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def search(
    spec: RunSpec, sweep: Sweep, order: dict[str, Any], say: Callable[[str], object]
) -> tuple[list[Row], list[GodRayError], bool]:
    """Run the trials on the cluster that this process is connected to; it can hold at least one."""
    with _quiet(), _stop_on_interrupt(say) as stopped:
        need = {"CPU": spec.workers.cpus or 1.0, "GPU": spec.workers.gpus}
        abreast = min(sweep.concurrent, sweep.trials, _room(need))
        if abreast < min(sweep.concurrent, sweep.trials):
            say(f"{abreast} at a time, not {sweep.concurrent}: each needs {_words(need)} of the cluster")
        callbacks, stop = [_Told(sweep, say)], _Stop(stopped)
        results = list(_tuner(spec, sweep, order, need, abreast, callbacks, stop).fit())
    found = [_row(result, Path(order["folder"])) for result in results]
    rows = [row for row, _ in found if row is not None]
    errors = [error for _, error in found if error is not None]
    return rows, errors, stopped.is_set()


def _tuner(
    spec: RunSpec,
    sweep: Sweep,
    order: dict[str, Any],
    need: dict[str, float],
    abreast: int,
    callbacks: list[Any],
    stop: Any,
) -> Any:
    return tune.Tuner(
        tune.with_resources(Trial, need),
        param_space={
            "number": tune.grid_search(list(range(sweep.trials))),
            "values": {key: _domain(drawn) for key, drawn in sweep.search.items()},
            "order": order,
        },
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            search_alg=BasicVariantGenerator(max_concurrent=abreast, random_state=spec.seed),
            scheduler=_scheduler(sweep.asha),
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=order["folder"],
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # a run makes its own
            callbacks=callbacks,
            stop=stop,
        ),
    )


def _domain(drawn: Distribution) -> Any:
    if drawn.choice is not None:
        return tune.choice(drawn.choice)
    if drawn.randint is not None:
        return tune.randint(*drawn.randint)
    if drawn.loguniform is not None:
        return tune.loguniform(*drawn.loguniform)
    return tune.uniform(*(drawn.uniform or (0.0, 1.0)))


def _scheduler(asha: Asha | None) -> Any:
    if asha is None:
        return None
    return ASHAScheduler(
        time_attr="evaluation",
        grace_period=asha.grace,
        reduction_factor=asha.reduction,
        max_t=asha.max or NO_END,
        stop_last_trials=False,
    )


def _room(need: dict[str, float]) -> int:
    import ray

    have = ray.cluster_resources()
    return max(1, min(int(have.get(kind, 0) / each) for kind, each in need.items() if each))


def _words(need: dict[str, float]) -> str:
    return " and ".join(f"{each:g} {kind}" for kind, each in need.items() if each)


def _row(result: Any, folder: Path) -> tuple[Row | None, GodRayError | None]:
    """What is known of a trial; no row for one that never began."""
    config, error = result.config, None if result.error is None else first_cause(result.error)
    run = RunFolder(folder / trial_name(config["number"]))
    record = _settled(run, error) if (run.path / "run.json").exists() else {}
    if not record and error is None:
        return None, None
    evaluated, last = newest(run.ledger, "eval"), newest(run.ledger)
    return Row(
        name=run.name,
        state=record.get("state", "FAILED"),
        reason=error.what if error is not None else record["reason"],
        values=dict(config["values"]),
        value=None if evaluated is None else float(evaluated["eval"].get(config["order"]["metric"], "nan")),
        evaluations=int((result.metrics or {}).get("evaluation", 0)),
        step=0 if last is None else int(last["step"]),
        digest=str((record.get("result") or {}).get("digest", "")),
        folder=run.path,
    ), error


def _settled(run: RunFolder, error: GodRayError | None) -> dict[str, Any]:
    """The record of a run whose process is gone: it must be in a final state."""
    if run.read()["state"] not in FINAL:
        if error is not None:
            run.move("FAILED", error.what)
        else:
            run.move("STOPPED", "its sweep ended")
    return run.read()


class _Told(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """A line for every trial that has ended."""

    def __init__(self, sweep: Sweep, say: Callable[[str], object]) -> None:
        self.sweep, self.say, self.ended = sweep, say, 0

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._line(trial, f"{self.sweep.metric} {_short(trial.last_result.get('value'))}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._line(trial, "failed")

    def _line(self, trial: Any, outcome: str) -> None:
        self.ended += 1
        values = ", ".join(f"{key} {_short(value)}" for key, value in trial.config["values"].items())
        name = trial_name(trial.config["number"])
        self.say(f"{self.ended}/{self.sweep.trials}  {name}  {values}: {outcome}")

    def __reduce__(self) -> Any:
        return tune.Callback, ()


def _short(value: object) -> str:
    return number(value) if isinstance(value, float) else printable(str(value))


class _NoStop(tune.Stopper):  # type: ignore[misc]  # Ray has no types
    """What Tune finds in the set-up it keeps on disk: the asking belongs to this process."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return False


class _Stop(_NoStop):
    def __init__(self, asked: threading.Event) -> None:
        self.asked = asked

    def stop_all(self) -> bool:
        return self.asked.is_set()

    def __reduce__(self) -> Any:
        return _NoStop, ()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Tune's own words and its files for other tools: `say` and the rows hold all of it."""
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with in_environment(QUIET):
        yield


@contextmanager
def _stop_on_interrupt(say: Callable[[str], object]) -> Iterator[threading.Event]:
    """Ctrl-C once: all trials stop, each with a checkpoint. Twice: at once. In the main thread only."""
    asked = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        say("stopping: each trial ends at its next step with a checkpoint; again ends at once")

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
