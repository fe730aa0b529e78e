"""`Recipe` refuses what cannot work; loading a user's file works from anywhere and blames the right line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from god_ray.errors import RecipeError
from god_ray.recipe import Recipe, load_function, load_recipe
from god_ray.userfile import UserFile

GOOD = """\
import torch
import god_ray


def loss(model, batch):
    return model(batch["x"]).mean()


def build(config):
    model = torch.nn.Linear(config["width"], 1)
    return god_ray.Recipe(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)
"""


@pytest.fixture(autouse=True)
def _restored_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(folder: Path, text: str, name: str = "recipe.py") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return str(folder / name)


def parts(**changes: object) -> dict:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "loss": lambda m, b: m(b["x"]).mean()} | changes


# --- Recipe


def test_a_full_recipe_is_accepted() -> None:
    given = parts()
    recipe = Recipe(
        **given,
        schedule=torch.optim.lr_scheduler.LambdaLR(given["optimizer"], lambda step: 1.0),
        metrics=lambda m, b: {},
        transform=lambda b, rng: b,
        collate=lambda table: {},
    )
    assert recipe.model is given["model"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": nn.Linear}, r"model=...\) is the class Linear"),
        ({"model": nn.DataParallel(nn.Linear(2, 1))}, "contains a DataParallel at its root"),
        ({"model": nn.Sequential(nn.SyncBatchNorm(2))}, "contains a SyncBatchNorm at 0"),
        (
            {"model": nn.Sequential(nn.Embedding(2, 1, sparse=True))},
            r"contains a Embedding\(sparse=True\) at 0",
        ),
        ({"model": nn.ReLU()}, "no parameter that requires a gradient"),
        ({"optimizer": None}, r"optimizer=...\) is None"),
        ({"optimizer": torch.optim.LBFGS(nn.Linear(2, 1).parameters())}, "is LBFGS"),
        ({"optimizer": torch.optim.SGD(nn.Linear(2, 1).parameters())}, "holds 2 parameters from outside"),
        ({"loss": "mse"}, r"loss=...\) is a str"),
        ({"loss": None}, r"loss=...\) is None"),
        ({"metrics": ["accuracy"]}, r"metrics=...\) is a list"),
        ({"transform": 3}, r"transform=...\) is a int"),
        ({"collate": {}}, r"collate=...\) is a dict"),
        ({"schedule": lambda step: 1.0}, r"schedule=...\) is a function"),
    ],
)
def test_what_cannot_work_is_refused_by_name(change: dict, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        Recipe(**parts(**change))


def test_schedules_that_cannot_be_stepped_are_refused() -> None:
    given = parts()
    other = torch.optim.SGD(given["model"].parameters(), lr=0.1)
    with pytest.raises(RecipeError, match="drives another optimizer"):
        Recipe(**given, schedule=torch.optim.lr_scheduler.ConstantLR(other))
    with pytest.raises(RecipeError, match="ReduceLROnPlateau"):
        Recipe(**given, schedule=torch.optim.lr_scheduler.ReduceLROnPlateau(given["optimizer"]))


# --- loading


def test_build_is_found_and_called_with_a_copy_of_config(tmp_path: Path) -> None:
    path = write(
        tmp_path, GOOD + "\n\ndef other(config):\n    config.clear()\n    return build({'width': 5})\n"
    )
    assert load_recipe(path)({"width": 3}).model.in_features == 3
    config = {"width": 3}
    assert load_recipe(path, "other")(config).model.in_features == 5
    assert config == {"width": 3}


def test_neighbours_can_be_imported_whatever_the_working_directory(tmp_path, monkeypatch) -> None:
    write(tmp_path / "a", "WIDTH = 4\n", "net_parts.py")
    path = write(tmp_path / "a", "import net_parts\n" + GOOD.replace('config["width"]', "net_parts.WIDTH"))
    monkeypatch.chdir(tmp_path)
    assert load_recipe("a/recipe.py")({}).model.in_features == 4
    assert load_recipe(path)({}).model.in_features == 4


def test_two_folders_with_files_of_the_same_names_stay_apart(tmp_path: Path) -> None:
    text = "from net_parts import WIDTH\n" + GOOD.replace('config["width"]', "WIDTH")
    builders = []
    for folder, width in (("a", 4), ("b", 9)):
        write(tmp_path / folder, f"WIDTH = {width}\n", "net_parts.py")
        builders.append(load_recipe(write(tmp_path / folder, text)))
    assert [build({}).model.in_features for build in builders] == [4, 9]
    assert load_recipe(str(tmp_path / "a" / "recipe.py"))({}).model.in_features == 4


def test_a_file_runs_once_until_it_changes(tmp_path: Path) -> None:
    mark = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')\n"
    path = write(tmp_path, mark + GOOD)
    load_recipe(path)
    load_function(f"{path}:loss")
    assert (tmp_path / "runs").read_text() == "x"
    write(tmp_path, mark + GOOD.replace("0.1", "0.2"))  # same size, perhaps the same second
    assert load_recipe(path)({"width": 1}).optimizer.param_groups[0]["lr"] == 0.2
    assert not (tmp_path / "__pycache__").exists()


def test_dataclasses_and_pickles_find_the_module(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport pickle\n\n"
        "@dataclass\nclass Point:\n    x: int = 1\n\n"
        "def copy():\n    return pickle.loads(pickle.dumps(Point(3)))\n",
    )
    assert load_function(f"{path}:copy")().x == 3


# --- blame


def blamed(path: str, config: dict | None = None) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)(config if config is not None else {"width": 2})
    return caught.value


def test_an_error_while_importing_names_file_line_and_source(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1\ny = x / 0\n" + GOOD)
    error = blamed(path)
    assert error.what == f"{path}:2: ZeroDivisionError: division by zero"
    assert error.why == "Raised by importing recipe.py, at: y = x / 0"
    assert (error.data["file"], error.data["line"]) == (path, 2)


def test_an_error_in_a_neighbour_is_blamed_on_the_neighbour(tmp_path: Path) -> None:
    helper = write(tmp_path, "def width():\n    raise ValueError('no width')\n", "net_width.py")
    path = write(tmp_path, "import net_width\n" + GOOD.replace('config["width"]', "net_width.width()"))
    assert blamed(path).what == f"{helper}:2: ValueError: no width"


def test_an_error_inside_torch_is_blamed_on_the_users_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    error = blamed(path, {"width": "wide"})
    assert error.what.startswith(f"{path}:10: TypeError: ")
    assert error.why == 'Raised by build(config), at: model = torch.nn.Linear(config["width"], 1)'


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1\ndef build(config:\n    pass\n")
    assert blamed(path).what.startswith(f"{path}:2: SyntaxError: ")


def test_a_missing_config_key_says_what_to_add(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert blamed(path, {"widht": 3}).fix == "did you mean widht?"
    assert "add width to config: in the spec" in blamed(path, {"lr": 3}).fix


ADD_ZZ = "add zz to config: in the spec (it is: column, net), or use config.get('zz', default)"


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ('batch["lbl"]', "did you mean label? batch has: image, label"),
        ('print("ä", config); return batch["lbl"]', "did you mean label? batch has: image, label"),
        ('batch[config["column"]]', "take a key that batch has: image, label"),
        ('config["colunm"]', "did you mean column?"),
        ('config["zz"]', ADD_ZZ),
        ('config["net"]["wdith"]', "did you mean width? config['net'] has: width"),
        ('config.pop("zz")', ADD_ZZ),
        ('[batch[name] for name in ("image", "lbl")]', "did you mean label? batch has: image, label"),
        ('TABLE["lbl"]', "take a key that TABLE has: none"),
        ('make()["lbl"]', "correct that line"),
    ],
)  # fmt: skip
def test_a_missing_key_is_advised_where_it_is_missing(tmp_path: Path, line: str, fix: str) -> None:
    text = (
        'TABLE = {}\nconfig = {"column": "zzz", "net": {"width": 1}}\n\n'
        f"def make():\n    return {{}}\n\ndef loss(model, batch):\n    {line}\n"
    )
    path = write(tmp_path, text)
    file, loss = UserFile.load(path, "loss")
    config = {"column": "zzz", "net": {"width": 1}}
    with pytest.raises(RecipeError) as caught, file.blame("loss(model, batch)", config):
        loss(None, {"image": 1, "label": 2})
    assert caught.value.fix == fix


def test_without_the_source_the_batch_is_looked_for_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, "def loss(model, batch):\n    return batch['lbl']\n")
    file, loss = UserFile.load(path, "loss")
    Path(path).unlink()
    with pytest.raises(RecipeError) as caught, file.blame("loss(model, batch)", {"lr": 1}):
        loss(None, {"image": 1, "label": 2})
    assert caught.value.fix == "did you mean label? batch has: image, label"


def test_a_missing_module_says_what_to_install(tmp_path: Path) -> None:
    error = blamed(write(tmp_path, "import no_such_module_here\n" + GOOD))
    assert "no_such_module_here" in error.what
    assert error.fix.startswith("install no_such_module_here in this environment")


def test_a_refused_recipe_is_blamed_on_the_line_that_made_it(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("loss=loss", "loss='mse'"))
    error = blamed(path)
    assert error.what == f"{path}:11: Recipe(loss=...) is a str"
    assert error.fix.startswith("pass loss=f")


def test_god_rays_own_lines_are_never_blamed_wherever_the_recipe_lies(tmp_path: Path) -> None:
    import god_ray

    root = Path(god_ray.__file__).parents[1]
    file = UserFile(str(root / "recipe.py"))
    assert not file._owns(god_ray.__file__)
    assert not file._owns(str(root / ".venv" / "lib" / "site-packages" / "torch" / "nn.py"))
    assert file._owns(str(root / "net_parts.py"))
    assert not UserFile("/recipe.py")._owns(subprocess.__file__)


def test_a_recipe_that_exits_is_an_error_not_an_exit(tmp_path: Path) -> None:
    error = blamed(write(tmp_path, "import sys\nsys.exit(0)\n"))
    assert "SystemExit" in error.what
    assert "__main__" in error.fix


@pytest.mark.parametrize(
    ("value", "said"),
    [("None", "None"), ("(model, 1)", "a tuple of (Linear, int)"), ("model", "a Linear")],
)
def test_a_wrong_return_type_is_named(tmp_path: Path, value: str, said: str) -> None:
    path = write(
        tmp_path, f"import torch\ndef build(config):\n    model = torch.nn.Linear(1, 1)\n    return {value}\n"
    )
    error = blamed(path)
    assert error.what == f"{path}:2: build(config) returned {said}"
    assert "god_ray.Recipe(model=model" in error.fix


def test_a_build_that_takes_no_config_is_refused_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "def build():\n    pass\n")
    with pytest.raises(RecipeError, match=r"recipe.py:1: build cannot be called as build\(config\)"):
        load_recipe(path)


def test_a_missing_function_gets_a_suggestion(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("def build", "def biuld"))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert caught.value.what == f"{path} has no function 'build'"
    assert caught.value.why == "Functions defined there: biuld, loss."
    assert caught.value.fix == "did you mean biuld?"


def test_a_name_that_is_no_function_is_said_so(tmp_path: Path) -> None:
    path = write(tmp_path, "build = 3\n")
    with pytest.raises(RecipeError, match="build is not a function"):
        load_recipe(path)


def test_a_missing_file_gets_a_suggestion(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "recipe.py")
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(tmp_path / "recpie.py"))
    assert caught.value.what == f"{tmp_path / 'recpie.py'} does not exist"
    assert caught.value.fix == "did you mean recipe.py?"
    with pytest.raises(RecipeError, match="does not exist"):
        load_recipe(str(tmp_path / "nowhere" / "recipe.py"))
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(str(tmp_path))


@pytest.mark.parametrize("reference", ["recipe.py", "recipe:build", "recipe.py:", "recipe.py:a-b", ""])
def test_a_reference_of_another_form_is_refused(reference: str) -> None:
    with pytest.raises(RecipeError, match="does not name a function"):
        load_function(reference)


# --- travelling


def test_a_builder_reaches_a_process_without_the_file_and_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "user", "WIDTH = 6\nclass Sized:\n    width = WIDTH\n", "net_parts.py")
    path = write(
        tmp_path / "user",
        "from net_parts import Sized\nimport net_parts\n"
        + GOOD.replace('config["width"]', "Sized.width + net_parts.WIDTH"),
    )
    sent = tmp_path / "sent"
    send = (
        "from god_ray.recipe import load_recipe; from god_ray.userfile import register_by_value\n"
        f"build = load_recipe({path!r})\n"
        "import ray.cloudpickle as pickler; register_by_value()\n"
        f"open({str(sent)!r}, 'wb').write(pickler.dumps(build))\n"
    )
    receive = (
        "import ray.cloudpickle as pickler\n"
        f"build = pickler.loads(open({str(sent)!r}, 'rb').read())\n"
        "print(build({}).model.in_features)\n"
    )
    subprocess.run([sys.executable, "-c", send], check=True, cwd=tmp_path)
    (tmp_path / "user").rename(tmp_path / "gone")
    answer = subprocess.run(
        [sys.executable, "-c", receive], check=True, cwd="/", capture_output=True, text=True
    )
    assert answer.stdout == "12\n"


def test_the_digits_example_builds_and_learns_from_a_batch() -> None:
    example = Path(__file__).parents[2] / "examples" / "digits" / "recipe.py"
    config = {"lr": 8e-3, "weight_decay": 0.01, "dropout": 0.1, "warmup_steps": 4, "total_steps": 10}
    recipe = load_recipe(str(example))(config)
    batch = {"image": torch.rand(8, 64), "label": torch.arange(8)}
    loss = recipe.loss(recipe.model, batch)
    loss.backward()
    assert loss.shape == ()
    assert recipe.metrics is not None
    assert {k: v.shape for k, v in recipe.metrics(recipe.model, batch).items()} == {
        "accuracy": (8,),
        "loss": (8,),
    }
    rates = []
    for _ in range(10):
        rates.append(recipe.optimizer.param_groups[0]["lr"] / config["lr"])
        recipe.optimizer.step()
        recipe.schedule.step()
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert recipe.optimizer.param_groups[0]["lr"] == pytest.approx(0)
