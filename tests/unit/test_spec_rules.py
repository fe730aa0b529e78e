"""The rules between keys, and what a sweep may draw (cases 2.02, 2.08 and 7.01 as far as no data is needed)."""

# ruff: noqa: E501  (messages stand on one line, as they are printed)

from __future__ import annotations

from typing import Any

import pytest

from god_ray.errors import SpecError
from god_ray.spec import load

GIVEN: dict[str, Any] = {"recipe": "r.py", "data": {"train": "a.parquet"}, "batch_size": 64, "epochs": 2}
EVALUATED = GIVEN | {"data": {"train": "a.parquet", "eval": "e.parquet"}}


def faults(given: dict[str, Any] = GIVEN, **fields: Any) -> list[tuple[str, str, str]]:
    with pytest.raises(SpecError) as caught:
        load(given, **fields)
    return [(p.key, p.rule, p.fix) for p in caught.value.data["problems"]]


@pytest.mark.parametrize("value", ["8:4", {"min": 8, "max": 4}])
def test_min_above_max_names_both(value: object) -> None:
    assert faults(workers=value, lanes=8) == [
        ("workers.min", "is above workers.max = 4", "set workers: 4:8"),
    ]


@pytest.mark.parametrize("value", ["8-4", "-1:2", "1.5:2", "two", True, None, [1, 2], "1:2:3", 1.5])
def test_a_size_is_a_number_a_range_or_a_mapping(value: object) -> None:
    [(key, rule, _)] = faults(workers=value)
    assert (key, rule) == ("workers", "must be N, MIN:MAX or a mapping of min, max, cpus, gpus")


@pytest.mark.parametrize(("value", "key"), [(0, "min"), (-3, "min"), ({"min": 1, "max": -2}, "max")])
def test_sizes_start_at_one(value: object, key: str) -> None:
    assert (f"workers.{key}", "must be a whole number, 1 or more") in [f[:2] for f in faults(workers=value)]


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (3, 3, 3),
        ("2:4", 2, 4),
        (" 2 : 4 ", 2, 4),
        ({"min": 2, "max": 4}, 2, 4),
        ({"max": 4}, 1, 4),
        ({"min": 2}, 2, 2),
    ],
)
def test_sizes_that_are_accepted(value: object, low: int, high: int) -> None:
    workers = load(GIVEN, workers=value).spec.workers
    assert (workers.min, workers.max, workers.initial) == (low, high, high)


def test_more_workers_than_lanes() -> None:
    rule = "is above lanes = 4, and every worker needs a lane"
    fix = "lanes is part of the result; set lanes: 9, or at most 4 workers"
    assert faults(workers="2:9") == [("workers.max", rule, fix)]
    assert load(GIVEN, workers="2:9", lanes=9).spec.workers.max == 9


def test_every_lane_can_be_filled() -> None:
    rule = "is below lanes * data.min_leaf_rows = 4 * 2 = 8"
    assert faults(batch_size=7) == [("batch_size", rule, "set batch_size: 8 or more, or fewer lanes")]
    assert load(GIVEN, batch_size=8).spec.batch_size == 8
    assert load(GIVEN, **{"batch_size": 4, "data.min_leaf_rows": 1}).spec.batch_size == 4


def test_batches_need_not_be_divisible() -> None:
    assert load(GIVEN, batch_size=100, lanes=7, workers="3:7").spec.batch_size == 100


def test_exactly_one_length() -> None:
    assert faults(epochs=None) == [
        (
            "epochs",
            "exactly one of epochs and steps is needed, neither is given",
            "add `epochs: 10` or `steps: 1000`",
        )
    ]
    rule = "exactly one of epochs and steps is needed, and epochs = 2 is given too"
    assert faults(steps=5) == [("steps", rule, "keep one; `--set epochs=null` takes the other away")]
    assert load(GIVEN, steps=5, epochs=None).spec.steps == 5


def test_metrics_need_an_evaluation_set() -> None:
    found = faults(stop_when={"metric": "acc"}, checkpoint={"keep_best": {"metric": "f1", "mode": "max"}})
    assert found == [
        ("stop_when.metric", "watches the evaluation metric 'acc', but there is no data.eval",
         "add `data: {eval: ...}`, or remove stop_when"),
        ("checkpoint.keep_best.metric", "watches the evaluation metric 'f1', but there is no data.eval",
         "add `data: {eval: ...}`, or remove checkpoint.keep_best"),
    ]  # fmt: skip
    drawn = {"metric": "loss", "search": {"config.lr": {"uniform": [0, 1]}}}
    assert faults(sweep=drawn) == [
        ("sweep.metric", "watches the evaluation metric 'loss', but there is no data.eval",
         "add `data: {eval: ...}`, or remove sweep"),
    ]  # fmt: skip
    assert load(EVALUATED, sweep=drawn).spec.sweep is not None
    data = {"train": "a", "eval": "b"}
    assert load(GIVEN, data=data, stop_when={"metric": "acc"}).spec.stop_when is not None


def test_a_rule_about_a_key_that_is_wrong_itself_is_not_reported() -> None:
    assert [key for key, _, _ in faults(lanes="many", batch_size=2, workers=9)] == ["lanes"]


def test_the_other_rules_are_still_applied_when_a_section_is_wrong() -> None:
    found = faults(sweep={"metric": "a", "search": {"config.a": {}}}, stop_when={"mode": "up"}, batch_size=2)
    assert sorted(key for key, _, _ in found) == [
        "batch_size",
        "stop_when.metric",
        "stop_when.mode",
        "sweep.metric",
        "sweep.search.config.a",
    ]


@pytest.mark.parametrize("name", ["a", "digits-1", "0", "A.b_c-d", "x" * 100])
def test_names_that_are_accepted(name: str) -> None:
    assert load(GIVEN, name=name).spec.name == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a..b", "-a", "_a", "a/b", "a b", "a\n", "ä", "x" * 101, "../x"]
)
def test_names_that_are_refused(name: str) -> None:
    assert [key for key, _, _ in faults(name=name)] == ["name"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 0),
        ("epochs", 0),
        ("epochs", -1),
        ("epochs", True),
        ("epochs", 1.5),
        ("lanes", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("clip_norm", 0),
        ("clip_norm", True),
        ("precision", "bf16"),
        ("precision", "fp16"),
        ("compile", "default"),
        ("determinism", "bitwize"),
        ("eval.every", 0),
        ("eval.every", "step"),
        ("eval.every", True),
        ("checkpoint.every_s", 0),
        ("checkpoint.every_steps", 0),
        ("checkpoint.keep", 0),
        ("failures.max", -1),
        ("data.window", 0),
        ("data.train", []),
        ("data.train", [""]),
        ("data.train", ["a", 5]),
        ("data.train", 5),
        ("data.columns", []),
        ("data.reader", "rya"),
        ("config", 5),
        ("data", "a.parquet"),
        ("workers.cpus", -1),
        ("stop_when", {}),
        ("sweep", {"metric": "a", "search": {}}),
    ],
)
def test_values_out_of_range_are_one_fault_at_their_key(key: str, value: object) -> None:
    keys = [found for found, _, _ in faults(EVALUATED, **{key: value})]
    assert len(keys) == 1
    assert keys[0].startswith(key)


def test_bare_words() -> None:
    spec = load(GIVEN, determinism="relaxed", eval={"every": 50}).spec
    assert (spec.determinism.mode, spec.determinism.isa, spec.determinism.digest_every) == (
        "relaxed",
        None,
        100,
    )
    assert spec.eval.every == 50
    rule = "did you mean bf16-mixed?"
    assert faults(precision="bf16")[0][2] == rule


def sweep(**search: object) -> dict[str, Any]:
    return {"metric": "loss", "search": {key.replace("__", "."): value for key, value in search.items()}}


def test_a_sweep_with_every_distribution() -> None:
    found = load(
        EVALUATED,
        sweep=sweep(
            config__lr={"loguniform": [1e-4, 1e-1]},
            batch_size={"choice": [32, 64]},
            config__drop={"uniform": [0, 1]},
            seed={"randint": [0, 100]},
            workers={"choice": [1, "2:4"]},
        )
        | {"asha": {}},
    ).spec.sweep
    assert found is not None
    assert (found.mode, found.trials, found.concurrent) == ("min", 10, 1)
    assert found.asha is not None
    assert (found.asha.grace, found.asha.reduction, found.asha.max) == (1, 3, None)
    assert found.search["config.drop"].uniform == [0.0, 1.0]


@pytest.mark.parametrize(
    ("search", "key", "rule", "fix"),
    [
        ({"batch_sise": {"choice": [8]}}, "batch_sise", "no such key in a spec", "did you mean batch_size?"),
        ({"lr": {"choice": [8]}}, "lr", "no such key in a spec",
         "values for the recipe go under config: write config: {lr: ...}"),
        ({"name": {"choice": ["a"]}}, "name", "every trial has this from its sweep", "remove name"),
        ({"sweep.trials": {"choice": [8]}}, "sweep.trials", "every trial has this from its sweep",
         "remove sweep.trials"),
        ({"batch_size": {"choice": [32, 4]}}, "batch_size",
         "may draw 4, but then batch_size is below lanes * data.min_leaf_rows = 4 * 2 = 8",
         "set batch_size: 8 or more, or fewer lanes"),
        ({"batch_size": {"uniform": [32, 64]}}, "batch_size",
         "may draw 51.7771, but then batch_size must be a whole number, 1 or more",
         "draw it with randint or choice"),
        ({"lanes": {"randint": [1, 33]}}, "lanes",
         "may draw 32, but then batch_size is below lanes * data.min_leaf_rows = 32 * 3 = 96",
         "set batch_size: 96 or more, or fewer lanes"),
        ({"precision": {"choice": ["fp32", "bf16"]}}, "precision",
         'may draw "bf16", but then precision must be one of fp32, bf16-mixed', "did you mean bf16-mixed?"),
        ({"workers": {"choice": [2, 6]}}, "workers",
         "may draw 6, but then workers.max is above lanes = 4, and every worker needs a lane",
         "lanes is part of the result; set lanes: 6, or at most 4 workers"),
        ({"config.a": {"choice": [1], "uniform": [0, 1]}}, "config.a",
         "must name exactly one of choice, uniform, loguniform, randint; has choice and uniform", "keep one of them"),
        ({"config.a": {}}, "config.a",
         "must name exactly one of choice, uniform, loguniform, randint; has none", "keep one of them"),
        ({"config.a": [1, 2]}, "config.a", "must be a mapping of choice, uniform, loguniform, randint",
         "write for example config.a: {choice: [1, 2]}"),
        ({"config.a": {"loguniform": [0, 1]}}, "config.a.loguniform",
         "must be [low, high], two numbers above 0, low below high, or null",
         "write for example loguniform: [1e-4, 1e-1], or null"),
        ({"config.a": {"uniform": [1, 1]}}, "config.a.uniform",
         "must be [low, high], two numbers, low below high, or null",
         "write for example uniform: [0.1, 0.5], or null"),
    ],
)  # fmt: skip
def test_faults_of_a_search(search: dict[str, Any], key: str, rule: str, fix: str) -> None:
    fields: dict[str, Any] = {"data.min_leaf_rows": 3} if "lanes" in search else {}
    found = faults(EVALUATED, sweep={"metric": "loss", "search": search}, **fields)
    assert found == [(f"sweep.search.{key}", rule, fix)]


def test_rungs_in_order() -> None:
    fields = sweep(seed={"choice": [1]}) | {"asha": {"grace": 5, "max": 3}}
    assert faults(EVALUATED, sweep=fields) == [
        ("sweep.asha.max", "is below sweep.asha.grace = 5", "set max: 5 or more")
    ]
