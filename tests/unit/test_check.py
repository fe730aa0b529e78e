"""`check`: all faults in one listing, each with its place; what a recipe does wrong is found on one leaf."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from small_runs import RECIPE, STEPS, project, write_rows

from god_ray.errors import RecipeError
from god_ray.runtime.check import Checked, check
from god_ray.runtime.run_folder import RunFolder
from god_ray.runtime.sample import sample

FACTS = {
    *("gpus", "rows", "row_bytes", "files", "fragments", "eval_rows", "shuffle", "batch_size", "lanes"),
    *("workers", "steps_per_epoch", "num_steps", "rows_per_lane", "rows_per_lane_last_step", "columns"),
    *(
        "num_parameters",
        "batch_norm",
        "optimizer",
        "device",
        "init_from",
        "unused_parameters",
        "loss",
        "metrics",
        "step_s",
    ),
    *("learning_rate", "lane_cost", "memory_bytes", "checkpoint_bytes", "rows_per_s", "run_s"),
    *("files_not_read", "largest_row_group"),
}


LOSS = 'return functional.cross_entropy(model(batch["x"]), batch["y"])'
NO_KERNEL = 'torch.zeros(9).put_(batch["y"], model(batch["x"])[:, 0]).sum()'


def texts(checked: Checked) -> list[str]:
    return [str(fault) for fault in checked.faults]


def only(checked: Checked) -> str:
    assert len(checked.faults) == 1, texts(checked)
    return texts(checked)[0]


def recipe_with(*changes: tuple[str, str]) -> str:
    text = RECIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), start=1) if part in line)


# ---- what is right


def test_what_to_expect_of_a_run(small_spec: Path) -> None:
    checked = check(small_spec)
    assert texts(checked) == []
    facts = checked.facts
    assert set(facts) == FACTS
    assert (facts["rows"], facts["eval_rows"], facts["fragments"], facts["files"]) == (50, 13, 4, 1)
    assert (facts["steps_per_epoch"], facts["num_steps"]) == (7, 21)
    assert (facts["rows_per_lane"], facts["rows_per_lane_last_step"]) == ([2, 2, 2, 2], [2, 0, 0, 0])
    assert facts["columns"] == {
        "x": {"dtype": "float32", "shape": [2, 4]},
        "y": {"dtype": "int64", "shape": [2]},
    }
    assert facts["num_parameters"] == 4 * 8 + 8 + 8 * 3 + 3
    assert facts["unused_parameters"] == []
    assert set(facts["metrics"]) == {"accuracy", "loss", "num_rows"}
    assert facts["metrics"]["num_rows"] == 8
    assert facts["memory_bytes"]["optimizer"] > facts["memory_bytes"]["model"] == 4 * facts["num_parameters"]
    assert facts["memory_bytes"]["data"] == 50 * (16 + 8)
    assert min(facts["step_s"], facts["lane_cost"], facts["rows_per_s"]) > 0
    assert json.dumps(facts, allow_nan=False)


def test_nothing_is_created_and_the_process_is_left_as_it_was(small_spec: Path, tmp_path: Path) -> None:
    check(small_spec, [f"storage={tmp_path / 'runs'}"])
    assert list(tmp_path.iterdir()) == []
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_sample_is_the_first_rows_with_their_numbers(tmp_path: Path) -> None:
    from god_ray.ingest.parquet import ParquetSource

    write_rows(tmp_path / "a.parquet", 40)
    source = ParquetSource.open([str(tmp_path)], None)
    plan, feed = sample(source, 22, 3, None, None)
    leaves = [feed.leaf(plan.cursor_at(step), lane) for step in (0, 0) for lane in range(3)]
    assert [leaf.rows.tolist() for leaf in leaves[:3]] == [
        [*range(7)],
        [*range(7, 14)],
        [*range(14, 22)],
    ]
    whole = pq.read_table(tmp_path / "a.parquet").column("y").to_pylist()
    assert torch.cat([leaf.batch["y"] for leaf in leaves[:3]]).tolist() == whole[:22]
    leaves[0].batch["y"].zero_()
    assert leaves[3].batch["y"].tolist() == whole[:7], "every caller has a copy of its own"


# ---- faults of everything at once


def test_spec_recipe_and_data_are_reported_together(tmp_path: Path) -> None:
    spec = project(tmp_path, recipe=recipe_with(('config.get("lr", 0.01)', 'config["lrr"]')))
    lines = [
        "recipe: recipe.py",
        "data:",
        "  train: train.parquet",
        "  columns: [xx, y]",
        "batch_sise: 8",
        "batch_size: 8",
        "workers: 9",
        "epochs: 1",
    ]
    spec.write_text("\n".join(lines))
    checked = check(spec)
    assert [(fault.kind, fault.where, fault.key) for fault in checked.faults] == [
        ("spec", f"{spec}:5", "batch_sise"),
        ("spec", f"{spec}:7", "workers.max"),
        ("recipe", "run.yaml:1", "recipe"),
        ("data", "run.yaml:4", "data.columns"),
    ]
    assert all(fault.fix for fault in checked.faults)
    assert "did you mean batch_size?" in texts(checked)[0]
    assert "KeyError: 'lrr'" in texts(checked)[2]
    assert "column xx: there is no such column" in texts(checked)[3]
    assert checked.facts == {}


def test_a_part_whose_key_is_wrong_is_not_looked_at(tmp_path: Path) -> None:
    spec = project(tmp_path, data={"train": 7}, recipe="import nothing_of_this_name\n")
    checked = check(spec)
    assert {fault.key for fault in checked.faults} == {"data.train", "recipe", "checkpoint.keep_best.metric"}


@pytest.mark.parametrize("text", [": [", "", "- a", "\0"])
def test_a_file_that_is_no_spec_is_a_fault(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    assert check(tmp_path / "run.yaml").faults
    assert "no such file" in only(check(tmp_path / "none.yaml"))
    assert "is a folder" in only(check(tmp_path))


def test_fewer_rows_than_a_batch(small_spec: Path) -> None:
    text = only(check(small_spec, ["batch_size=64"]))
    assert text.startswith("--set: batch_size: 64 is above the 50 rows of data.train")
    assert "Fix: set batch_size: 50 or less" in text


@pytest.mark.parametrize("key", ["train", "eval"])
def test_data_without_rows_or_files(key: str, small_spec: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "empty.parquet", 0)
    assert "there are no rows" in only(check(small_spec, [f"data.{key}={tmp_path / 'empty.parquet'}"]))
    assert "no data there" in only(check(small_spec, [f"data.{key}={tmp_path / 'nothing'}"]))


def test_a_storage_that_cannot_be_written(small_spec: Path) -> None:
    text = only(check(small_spec, [f"storage={small_spec}/below"]))
    assert "cannot be written" in text


def test_train_tells_all_faults_of_spec_recipe_and_data_too(god_ray_here, tmp_path: Path) -> None:
    data = {"train": "train.parquet", "columns": ["xx"]}
    spec = project(tmp_path, recipe="import nothing_of_this_name\n", data=data)
    changes = ("--set", "checkpoint.keep_best=null", "--set", "batch_sise=8")
    code, out, err = god_ray_here("train", spec, *changes)
    assert (code, out) == (2, "")
    assert "3 faults; nothing was started" in err
    for text in ("did you mean batch_size?", "No module named 'nothing_of_this_name'", "column xx"):
        assert text in err
    assert not torch.are_deterministic_algorithms_enabled()


# ---- faults of the recipe, found by trying


def test_a_leaf_can_be_tried_before_anything_is_created(tmp_path: Path) -> None:
    from god_ray.runtime.assignment import prepare
    from god_ray.runtime.attempt import try_leaf
    from god_ray.spec import load

    try_leaf(prepare(load(project(tmp_path / "right")), str(tmp_path / "r")))
    wrong = project(tmp_path / "wrong", recipe=recipe_with((LOSS, f"{LOSS} + {NO_KERNEL}")))
    with pytest.raises(RecipeError, match="put_ has no deterministic kernel"):
        try_leaf(prepare(load(wrong), str(tmp_path / "r")))
    assert not torch.are_deterministic_algorithms_enabled()
    assert not (tmp_path / "r").exists()


def tried(tmp_path: Path, *changes: tuple[str, str], sets: tuple[str, ...] = (), **spec: object) -> Checked:
    return check(project(tmp_path, recipe=recipe_with(*changes), **spec), sets)


def test_a_loss_that_raises_is_named_with_its_line(tmp_path: Path) -> None:
    text = only(tried(tmp_path, (LOSS, 'return functional.cross_entropy(model(batch["z"]), batch["y"])')))
    assert f"recipe.py:{line_of(RECIPE, LOSS)}: KeyError: 'z'" in text


def test_wrong_shapes_are_named_with_their_line(tmp_path: Path) -> None:
    text = only(tried(tmp_path, ("Linear(4, 8)", "Linear(5, 8)")))
    assert f"recipe.py:{line_of(RECIPE, LOSS)}: RuntimeError: mat1 and mat2 shapes" in text


@pytest.mark.parametrize(
    ("returned", "rule"),
    [
        (
            'functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")',
            "loss returned a tensor",
        ),
        ('functional.cross_entropy(model(batch["x"]), batch["y"]).item()', "loss returned"),
        ('functional.cross_entropy(model(batch["x"]), batch["y"]).detach()', "without gradient"),
        ('functional.cross_entropy(model(batch["x"]), batch["y"]) * float("nan")', "the loss is nan"),
    ],
)
def test_a_loss_that_breaks_its_contract(returned: str, rule: str, tmp_path: Path) -> None:
    assert rule in only(tried(tmp_path, (LOSS, f"return {returned}")))


@pytest.mark.parametrize(
    ("before", "term"),
    [
        ("calls = []", "len(calls.append(0) or calls)"),
        ("own = torch.Generator()", "torch.rand((), generator=own)"),
        ("import os", "int.from_bytes(os.urandom(4))"),
    ],
)
def test_what_a_recipe_draws_or_remembers_for_itself_is_found(before: str, term: str, tmp_path: Path) -> None:
    changes = (("import god_ray", f"import god_ray\n\n{before}"), (LOSS, f"{LOSS} * {term}"))
    text = only(tried(tmp_path, *changes))
    assert "the same rows gave two results" in text
    assert "0.weight" in text
    relaxed = check(tmp_path / "run.yaml", ["determinism=relaxed"])
    assert texts(relaxed) == []
    assert any("the same rows gave two results" in warning for warning in relaxed.warnings)


def test_the_global_generators_are_free_to_use(tmp_path: Path) -> None:
    term = 'torch.rand(()) * functional.dropout(model(batch["x"]), 0.5).mean()'
    assert texts(tried(tmp_path, (LOSS, f"{LOSS} + {term}"))) == []


def test_a_build_that_differs_from_call_to_call(tmp_path: Path) -> None:
    change = ("import god_ray", "import god_ray\n\nown = torch.Generator()")
    fill = ("    optimizer =", "    model[0].weight.data.uniform_(generator=own)\n    optimizer =")
    text = only(tried(tmp_path, change, fill))
    assert "build(config) made another model the second time" in text


def test_an_operation_without_a_deterministic_kernel(tmp_path: Path) -> None:
    text = only(tried(tmp_path, (LOSS, f"{LOSS} + {NO_KERNEL}")))
    assert "put_ has no deterministic kernel" in text
    assert "set determinism: relaxed" in text
    assert texts(check(tmp_path / "run.yaml", ["determinism=relaxed"])) == []


def test_metrics_that_break_their_contract(tmp_path: Path) -> None:
    change = ('(model(batch["x"]).argmax(dim=1) == batch["y"]).float()', "torch.ones(3)")
    assert "metric 'accuracy'" in only(tried(tmp_path, change))


def test_a_metric_that_a_rule_waits_for_must_be_measured(tmp_path: Path) -> None:
    text = only(tried(tmp_path, stop_when={"metric": "accurracy"}))
    assert text.startswith("stop_when.metric = accurracy: the evaluation does not measure that")
    assert "accuracy, loss, num_rows" in text


def test_a_schedule_that_ends_before_the_run_does(tmp_path: Path) -> None:
    schedule = "torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)"
    change = ("metrics=metrics)", f"metrics=metrics, schedule={schedule})")
    text = only(tried(tmp_path, change))
    assert text.startswith("the schedule fails after step 21 of 21: ValueError")
    longer = check(tmp_path / "run.yaml", ["epochs=2"])
    assert texts(longer) == []
    assert longer.facts["learning_rate"]["highest"] == pytest.approx(0.1)


def test_what_a_checkpoint_could_not_hold(tmp_path: Path) -> None:
    change = ("    return god_ray", '    optimizer.param_groups[0]["odd"] = object()\n    return god_ray')
    assert "cannot be kept in a checkpoint" in only(tried(tmp_path, change))


def test_a_parameter_that_a_forward_pass_changes(tmp_path: Path) -> None:
    """The same rows give the same result twice; but each worker would change its own."""
    change = (LOSS, f"model[2].weight.detach().renorm_(2, 0, 0.1); {LOSS}")
    assert "2.weight was changed in place" in only(tried(tmp_path, change))


def test_weights_to_start_from(tmp_path: Path, finished_run: RunFolder) -> None:
    from safetensors.torch import save_file

    save_file({"0.weight": torch.zeros(2, 2)}, tmp_path / "w.safetensors")
    (tmp_path / "x.safetensors").write_text("no tensors")
    project(tmp_path)
    newest = finished_run.checkpoints / f"step-{STEPS:08d}"
    for fits in (finished_run.path, newest):
        assert texts(check(tmp_path / "run.yaml", [f"init_from={fits}"])) == []
    for wrong, text in (
        ("w.safetensors", "does not fit the model"),
        ("x.safetensors", "no weights can be read"),
        ("nowhere", "holds no weights"),
        ("step-00000007", "cannot be used"),
    ):
        assert text in only(check(tmp_path / "run.yaml", [f"init_from={tmp_path / wrong}"]))


# ---- warnings


def warned(checked: Checked, part: str) -> bool:
    assert texts(checked) == []
    return any(part in warning for warning in checked.warnings)


def test_parameters_without_a_gradient(tmp_path: Path) -> None:
    change = ("    optimizer =", "    model[1].spare = torch.nn.Parameter(torch.zeros(3))\n    optimizer =")
    checked = tried(tmp_path, change)
    assert checked.facts["unused_parameters"] == ["1.spare"]
    assert warned(checked, "no gradient in the step that was tried: 1.spare")


def test_batch_norm_over_few_rows(tmp_path: Path) -> None:
    checked = tried(tmp_path, ("torch.nn.ReLU()", "torch.nn.BatchNorm1d(8)"))
    assert warned(checked, "BatchNorm sees one leaf at a time, and the smallest leaf has 2 rows")


def test_a_run_that_ends_within_its_first_epoch(small_spec: Path) -> None:
    assert warned(check(small_spec, ["epochs=null", "steps=3"]), "within its first epoch of 7")


def test_a_name_that_is_taken(small_spec: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    assert warned(check(small_spec, [f"storage={tmp_path}", "name=taken"]), "taken is already there")


def test_gpus_that_nobody_uses(small_spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    checked = Checked()
    from god_ray.runtime.check import _look_around
    from god_ray.spec import load

    _look_around(load(small_spec).spec, checked)
    assert checked.facts["gpus"] == 2
    assert "2 GPUs here stay unused; set workers.gpus: 1 to train on them" in checked.warnings


@pytest.mark.parametrize("collate", [False, True])
def test_a_preprocess_that_changes_a_type_between_blocks_is_a_fault(tmp_path: Path, collate: bool) -> None:
    """Lanes that read across blocks: neither a wider type in silence, nor a traceback."""
    takes = ", collate=lambda table: {k: torch.tensor(table[k].to_pylist()) for k in 'xy'})"
    spec = project(
        tmp_path,
        RECIPE.replace("metrics=metrics)", "metrics=metrics" + takes if collate else "metrics=metrics)"),
    )
    (tmp_path / "prepare.py").write_text(
        "import pyarrow as pa\n\n\ndef prepare(table):\n"
        "    kind = pa.int64() if len(table) % 16 else pa.int32()\n"
        "    return table.set_column(1, 'y', table['y'].cast(kind))\n"
    )
    found = check(spec, ["data.preprocess=prepare.py:prepare", "batch_size=40", "lanes=2"]).faults
    assert [fault.what for fault in found] == ["data.preprocess returns different columns for different rows"]


def test_a_preprocess_that_changes_the_order_of_rows_is_a_fault(tmp_path: Path) -> None:
    """One that looks at other rows is not: its values differ, its rows stay where they are."""
    spec = project(tmp_path)
    head = "import pyarrow.compute as pc\n\n\ndef prepare(table):\n"
    for body in ("    return table.sort_by('y')\n", "    return table.take(list(range(len(table)))[::-1])\n"):
        (tmp_path / "prepare.py").write_text(head + body)
        found = check(spec, ["data.preprocess=prepare.py:prepare"]).faults
        assert len(found) == 1
        assert found[0].what.endswith("prepare.py:4: prepare(table) returns the rows in another order")
    centred = "pc.subtract(table['y'], pc.min(table['y']))"
    (tmp_path / "prepare.py").write_text(head + f"    return table.set_column(1, 'y', {centred})\n")
    assert texts(check(spec, ["data.preprocess=prepare.py:prepare"])) == []
