"""`import god_ray` is cheap and lazy, and offers what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import god_ray


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(m for m in sys.modules if '.' not in m))"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_importing_loads_neither_torch_nor_ray() -> None:
    heavy = {"torch", "ray", "pyarrow", "numpy", "pydantic"}
    assert not heavy & loaded_after("import god_ray")
    assert not heavy & loaded_after(
        "import god_ray; god_ray.errors.SpecError; dir(god_ray); god_ray.__version__"
    )


def test_recipe_is_loaded_on_use_and_without_ray() -> None:
    loaded = loaded_after("import god_ray; god_ray.Recipe; god_ray.RowRandom")
    assert "torch" in loaded
    assert "ray" not in loaded


def test_lazy_names_are_the_real_ones() -> None:
    from god_ray import api
    from god_ray.errors import RecipeError
    from god_ray.recipe import Recipe
    from god_ray.rowrandom import RowRandom

    assert (god_ray.train, god_ray.Result) == (api.train, api.Result)
    assert god_ray.Recipe is Recipe
    assert god_ray.RowRandom is RowRandom
    assert god_ray.errors.RecipeError is RecipeError


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Recipes'.*Recipe"):
        _ = god_ray.Recipes
    assert not hasattr(god_ray, "trainer")


def test_dir_lists_the_public_names() -> None:
    names = ["Recipe", "Result", "RowRandom", "__version__", "errors", "evaluate", "resume", "train"]
    assert dir(god_ray) == names
