"""The house rules as tests: short modules that say what they are for, imports that point down, live paths."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = [p for top in ("god_ray", "examples", "bench") for p in sorted((ROOT / top).rglob("*.py"))]
EVERYTHING = [*CODE, *sorted((ROOT / "tests").rglob("*.py"))]
MODULES = [p for p in CODE if p.read_text().strip()]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@each_module
def test_a_module_says_what_it_answers_in_2_to_6_lines(path: Path) -> None:
    said = ast.get_docstring(tree(path))
    assert said, "no module docstring"
    lines = [line for line in said.splitlines() if line.strip()]
    most = 40 if path.name == "errors.py" else 6
    assert 2 <= len(lines) <= most, f"{len(lines)} lines"


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_stays_under_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@each_module
def test_a_function_fits_a_screen(path: Path) -> None:
    functions = [n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {f.name: (f.end_lineno or 0) - f.lineno + 1 for f in functions}
    assert not {name: length for name, length in lengths.items() if length > 60}


@each_module
def test_a_module_is_named_for_what_it_does(path: Path) -> None:
    names = path.relative_to(ROOT).with_suffix("").parts
    assert not set(names) & {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_silenced_without_saying_what(path: Path) -> None:
    bare = [
        f"{number}: {line.strip()}"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"#\s*type:\s*ignore(?!\[)|#\s*noqa(?!:)|except\s*:", line)
    ]
    assert not bare


def test_imports_point_down_only() -> None:
    tool = shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or shutil.which("lint-imports")
    assert tool, "import-linter is a dev dependency: pip install -e '.[dev]'"
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_stands_in_the_layers() -> None:
    """A new room must say where in the house it is; a module outside the layers could import anything."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c for c in settings["contracts"] if c["type"] == "layers")["layers"]
    placed = {
        name.strip(" ()").removeprefix("god_ray.") for layer in layers for name in re.split("[|:]", layer)
    }
    rooms = {p.stem for p in (ROOT / "god_ray").glob("*.py") if p.stem != "__init__"}
    rooms |= {p.parent.name for p in (ROOT / "god_ray").glob("*/__init__.py")}
    assert not rooms - placed, "add them to [tool.importlinter] in pyproject.toml"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("god_ray", {"torch", "ray", "pyarrow", "numpy", "pydantic"}),
        ("god_ray.errors", {"torch", "ray", "pyarrow", "numpy", "pydantic"}),
        ("god_ray.cli", {"torch", "ray", "pyarrow", "numpy", "pydantic"}),
        ("god_ray.spec", {"torch", "ray", "pyarrow"}),
        ("god_ray.plan", {"torch", "ray", "pyarrow"}),
        ("god_ray.recipe", {"ray"}),
    ],
)
def test_import_budget(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & heavy


def test_command_files_import_only_typer_and_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"typer"}
    light = {"god_ray.errors", "god_ray.cli"}
    commands = sorted((ROOT / "god_ray" / "cli").glob("*.py"))
    assert commands
    for path in commands:
        for node in tree(path).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                fine = name.split(".")[0] in allowed or name in light or name.startswith("god_ray.cli.")
                assert fine, f"{path.name}:{node.lineno} imports {name} at module level"


@each_page
def test_paths_in_the_pages_exist(page: Path) -> None:
    """Links, and `code` that looks like a path into this repository."""
    text = page.read_text()
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    links = [link for link in links if link and not re.match(r"[a-z]+:", link)]
    tops = "god_ray|examples|tests|bench|docs|cluster"
    named = re.findall(rf"`((?:{tops})/[\w./-]+?\.(?:py|md|yaml|toml))(?::\w+)?`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_the_readme_lists_the_commands_that_there_are() -> None:
    from god_ray.cli import app

    text = (ROOT / "README.md").read_text()
    found = re.search(r"^## Commands\n+((?:`[\w-]+`[\s·]*)+)\.", text, re.MULTILINE)
    assert found, "the section begins with the commands: `init` · `check` · ..."
    there = [command.name for command in app.registered_commands]
    assert sorted(re.findall(r"`([\w-]+)`", found[1])) == sorted(filter(None, there))


def test_the_pinned_versions_are_inside_the_honest_ranges() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, wanted):
        version = pinned[requirement.name.lower().replace("_", "-")]
        assert version in requirement.specifier, f"{requirement} but {version} is pinned"
        assert "+" not in version
    assert not any("/" in line or "@" in line for line in lines if not line.startswith("#"))
