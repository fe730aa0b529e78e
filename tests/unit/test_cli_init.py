"""`god-ray init`: what it guesses, writes and refuses; and that what it writes can be trained."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from god_ray import cli, spec
from god_ray.cli.starter.columns import Look, look_at
from god_ray.errors import DataError
from god_ray.recipe import load_function, load_recipe

ROWS = 240
CONFIG = {"hidden": 8, "dropout": 0.0, "lr": 0.01, "weight_decay": 0.0}


@pytest.fixture(autouse=True)
def _restored_imports() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(3.0, 2.0, ROWS)


def images(width: int = 12) -> pa.Array:
    flat = np.random.default_rng(1).random(ROWS * width, dtype=np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), width)


CLASS = np.arange(ROWS) % 3
TABLES = {
    "images": ({"image": images(), "label": CLASS}, "label", [0, 1, 2], ["image"]),
    "table": ({"a": numbers(1), "b": CLASS > 1, "y": CLASS}, "y", [0, 1, 2], ["a", "b"]),
    "price": ({"a": numbers(1), "rooms": CLASS, "target": numbers(2)}, "target", [], ["a", "rooms"]),
    "flag": ({"a": numbers(1), "y": CLASS > 1}, "y", [0, 1], ["a"]),
    "ones": ({"a": numbers(1), "class": np.where(CLASS > 1, 1, -1)}, "class", [-1, 1], ["a"]),
    "decimal": ({"a": numbers(1), "y": (CLASS > 1).astype(float)}, "y", [0, 1], ["a"]),
    "texts": (
        {"a": numbers(1), "species": np.array(["iris", "rose", "ivy"])[CLASS]},
        "species",
        ["iris", "ivy", "rose"],
        ["a"],
    ),
    "suffix": ({"house_class": CLASS, "a": numbers(1), "n": CLASS}, "house_class", [0, 1, 2], ["a", "n"]),
    "last integer": ({"a": numbers(1), "kind": CLASS, "b": numbers(2)}, "kind", [0, 1, 2], ["a", "b"]),
    "last float": ({"a": numbers(1), "id": np.arange(ROWS), "b": numbers(2)}, "b", [], ["a"]),
}


def write(folder: Path, columns: dict, name: str = "train.parquet", groups: int = 3) -> Path:
    path = folder / name
    pq.write_table(pa.table(columns), path, row_group_size=-(-ROWS // groups))
    return path


def batch_of(table: pa.Table, names: list[str]) -> dict[str, torch.Tensor]:
    batch = {}
    for name in names:
        column = table[name].combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            values = column.flatten().to_numpy().reshape(len(column), -1)
        else:
            values = column.to_numpy(zero_copy_only=False)
        batch[name] = torch.from_numpy(np.array(values))
    return batch


@pytest.mark.parametrize(("table", "label", "classes", "inputs"), TABLES.values(), ids=TABLES)
def test_what_it_writes_can_be_trained(tmp_path, table, label, classes, inputs) -> None:
    data = write(tmp_path, table)
    look = look_at(data)
    assert (look.label, look.classes, [i.name for i in look.inputs]) == (label, classes, inputs)

    assert cli.main(["init", str(data), "--dir", str(tmp_path / "new")]) == 0
    loaded = spec.load(tmp_path / "new" / "run.yaml")
    run = loaded.spec
    columns = list(run.data.columns)
    assert columns == [*inputs, label]
    table = pq.read_table(data, columns=columns).slice(0, 48)
    if run.data.preprocess:
        table = load_function(run.data.preprocess)(table)
    batch = batch_of(table, columns)
    recipe = load_recipe(run.recipe)(run.config)
    before = recipe.loss(recipe.model.eval(), batch)
    before.backward()
    assert all(p.grad is not None for p in recipe.model.parameters())
    for _ in range(30):
        recipe.optimizer.zero_grad()
        recipe.loss(recipe.model, batch).backward()
        recipe.optimizer.step()
    assert recipe.loss(recipe.model, batch) < before
    shapes = {name: tuple(value.shape) for name, value in recipe.metrics(recipe.model, batch).items()}
    assert shapes == dict.fromkeys(["accuracy", "loss"] if classes else ["error", "loss"], (48,))


def test_inputs_are_standardised_inside_the_model(tmp_path: Path) -> None:
    data = write(tmp_path, {"a": numbers(1), "image": images(), "label": CLASS})
    assert cli.main(["init", str(data), "--dir", str(tmp_path)]) == 0
    model = load_recipe(str(tmp_path / "recipe.py"))(CONFIG).model
    assert model.mean.shape == model.std.shape == (13,)
    assert model.mean[0].item() == pytest.approx(numbers(1).mean(), rel=1e-5)
    assert model.std[0].item() == pytest.approx(numbers(1).std(), rel=1e-5)
    assert {"mean", "std"} <= set(model.state_dict())


def test_what_cannot_be_an_input_is_left_out_with_a_reason(tmp_path: Path) -> None:
    holes = numbers(3)
    holes[5] = np.nan
    data = write(
        tmp_path,
        {
            "id": np.arange(ROWS),
            "serial": np.arange(ROWS) * 7,
            "name": ["x"] * ROWS,
            "day": pa.array([0] * ROWS, pa.date32()),
            "none": pa.array([None, *([1.0] * (ROWS - 1))]),
            "nan": holes,
            "same": [4.0] * ROWS,
            "ragged": [[1, 2]] * ROWS,
            "a": numbers(1),
            "label": CLASS,
        },
    )
    look = look_at(data)
    assert [i.name for i in look.inputs] == ["a"]
    reasons = [note for note in look.notes if note.startswith("left out")]
    assert reasons == [
        "left out: id (it identifies rows)",
        "left out: serial (it identifies rows)",
        "left out: name (string is no number; encode it first)",
        "left out: day (date32[day] is no number; encode it first)",
        "left out: none (it has nulls; fill them first)",
        "left out: nan (it has NaN or infinite values; fill them first)",
        "left out: same (it is the same in every row)",
        "left out: ragged (list<element: int64> is no number; encode it first)",
    ]


def test_every_class_is_found_in_a_file_sorted_by_label(tmp_path: Path, monkeypatch) -> None:
    from god_ray.cli.starter import columns

    monkeypatch.setattr(columns, "SAMPLE_GROUPS", 2)
    monkeypatch.setattr(columns, "SAMPLE_ROWS", 20)
    data = write(tmp_path, {"a": numbers(1), "label": np.sort(np.arange(ROWS) % 24)}, groups=24)
    look = look_at(data)
    assert look.classes == list(range(24))
    assert look.sampled <= 20


def test_a_folder_is_one_data_set_and_a_test_set_beside_it_is_found(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, {"a": numbers(1), "label": CLASS}, "part-0.parquet")
    write(tmp_path / "train", {"a": numbers(2), "label": CLASS}, "part-1.parquet")
    look = look_at(tmp_path / "train")
    assert (look.num_rows, look.eval) == (2 * ROWS, tmp_path / "test")
    assert cli.main(["init", str(tmp_path / "train"), "--dir", str(tmp_path)]) == 0
    text = (tmp_path / "run.yaml").read_text()
    assert "  train: train  #" in text
    assert "  eval: test  #" in text


def test_without_a_test_set_it_says_how_to_make_one(tmp_path: Path) -> None:
    """The lines as a user writes them: `init` finds what they made."""
    data = write(tmp_path, {"a": numbers(1), "label": CLASS}, "all.parquet")
    assert cli.main(["init", str(data), "--dir", str(tmp_path / "before")]) == 0
    text = (tmp_path / "before" / "run.yaml").read_text()
    assert "  # eval: test.parquet  #" in text
    assert "t.filter(np.arange(len(t)) % 10 == 0)" in text
    assert "epochs: 100  # passes over the data, chosen for about 1000 steps (but 2 to 100 passes);" in text
    t = pq.read_table(data)
    test = np.arange(len(t)) % 10 == 0
    pq.write_table(t.filter(~test), tmp_path / "train.parquet")
    pq.write_table(t.filter(test), tmp_path / "test.parquet")
    look = look_at(tmp_path / "train.parquet")
    assert (look.num_rows, look.eval) == (ROWS - ROWS // 10, tmp_path / "test.parquet")


def test_awkward_names_survive_yaml_and_python(tmp_path: Path) -> None:
    names = ['say "hi"', "a: b # c", "true", "naïve\\n", "3"]
    data = write(
        tmp_path, {name: numbers(i) for i, name in enumerate(names)} | {"label": CLASS}, "a b%.parquet"
    )
    assert cli.main(["init", str(data), "--dir", str(tmp_path / "new folder")]) == 0
    run = spec.load(tmp_path / "new folder" / "run.yaml").spec
    assert list(run.data.columns) == [*names, "label"]
    assert load_recipe(run.recipe)(run.config).model.mean.shape == (5,)


def test_the_label_can_be_named(tmp_path: Path, capsys) -> None:
    data = write(tmp_path, {"a": numbers(1), "b": numbers(2), "label": CLASS})
    assert look_at(data, "a").label == "a"
    assert cli.main(["init", str(data), "--dir", str(tmp_path), "--label", "lable"]) == 2
    assert "did you mean label?" in capsys.readouterr().err


def test_paths_go_to_stdout_and_guesses_to_stderr(tmp_path: Path, capsys) -> None:
    data = write(tmp_path, {"a": numbers(1), "label": CLASS})
    assert cli.main(["init", str(data), "--dir", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [str(tmp_path / "recipe.py"), str(tmp_path / "run.yaml")]
    assert "label: label (by its name)" in shown.err
    assert "Next: god-ray check" in shown.err


def test_nothing_is_overwritten_nor_half_written(tmp_path: Path, capsys) -> None:
    data = write(tmp_path, {"a": numbers(1), "label": CLASS})
    (tmp_path / "run.yaml").write_text("mine")
    assert cli.main(["init", str(data), "--dir", str(tmp_path)]) == 2
    assert f"{tmp_path / 'run.yaml'} already there" in capsys.readouterr().err
    assert (tmp_path / "run.yaml").read_text() == "mine"
    assert not (tmp_path / "recipe.py").exists()


def test_without_data_it_marks_the_lines_to_edit(tmp_path: Path, capsys) -> None:
    assert cli.main(["init", "--dir", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    for name in ("recipe.py", "run.yaml"):
        lines = (tmp_path / name).read_text().splitlines()
        marked = [number for number, line in enumerate(lines, start=1) if "<- EDIT" in line]
        assert len(marked) >= 2
        assert all(f"{tmp_path / name}:{number}" in told for number in marked)
    recipe = load_recipe(str(tmp_path / "recipe.py"))(spec.load(tmp_path / "run.yaml").spec.config)
    recipe.loss(recipe.model, {"image": torch.rand(4, 64), "label": torch.arange(4)}).backward()


def test_every_value_of_the_spec_is_explained(tmp_path: Path) -> None:
    data = write(tmp_path, {"a": numbers(1), "label": CLASS})
    cli.main(["init", str(data), "--dir", str(tmp_path)])
    lines = (tmp_path / "run.yaml").read_text().splitlines()
    assert [line for line in lines if ":" in line and "#" not in line] == ["data:"]


@pytest.mark.parametrize("name", ["d.csv", "d.tsv", "d.json", "d.jsonl", "d.arrow"])
def test_other_formats_are_told_how_to_be_converted(tmp_path: Path, name: str, capsys) -> None:
    (tmp_path / name).write_text("a,label\n1,2\n")
    assert cli.main(["init", str(tmp_path / name), "--dir", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "is not Parquet" in told
    assert f"god-ray init {tmp_path / 'd.parquet'}" in told
    assert not (tmp_path / "recipe.py").exists()


def test_the_told_conversion_of_a_csv_works(tmp_path: Path, capsys) -> None:
    rows = "\n".join(f"{i / 7},{i % 2}" for i in range(40))
    (tmp_path / "it's.csv").write_text(f"a,label\n{rows}\n")
    assert cli.main(["init", str(tmp_path / "it's.csv")]) == 2
    command = next(line for line in capsys.readouterr().err.splitlines() if "python -c" in line)
    exec(command.strip().removeprefix('python -c "').removesuffix('"'))
    look: Look = look_at(tmp_path / "it's.parquet")
    assert (look.label, look.num_rows, look.classes) == ("label", 40, [0, 1])


def test_data_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_text("no")
    write(tmp_path, {"a": numbers(1), "label": CLASS})
    few = {"a": [1.0, 2.0], "label": [0, 1]}
    pq.write_table(pa.table(few), tmp_path / "few.parquet")
    write(tmp_path, {"label": CLASS, "name": ["x"] * ROWS}, "alone.parquet")
    write(tmp_path, {"name": ["x"] * ROWS}, "nothing.parquet")
    write(tmp_path, {"a": numbers(1), "y": pa.array([None] + [1] * (ROWS - 1))}, "holes.parquet")
    for name, says in {
        "tarin.parquet": "did you mean train.parquet",
        "empty": r"holds no \*.parquet",
        "bad.parquet": "cannot be read as Parquet",
        "few.parquet": "has 2 rows",
        "alone.parquet": "no column to learn label from",
        "nothing.parquet": "no column that could be a label",
    }.items():
        with pytest.raises(DataError, match=says):
            look_at(tmp_path / name)
    with pytest.raises(DataError, match="has nulls"):
        look_at(tmp_path / "holes.parquet", "y")
