"""A finished run for the tests of commands that read one; made once, in this process."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from god_ray.runtime.run_folder import RunFolder


@pytest.fixture(scope="session")
def small_spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spec of `small_runs.project`."""
    from small_runs import project

    return project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="session")
def finished_run(small_spec: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Not to be changed: `small_run` is a copy that may be."""
    from small_runs import STEPS, reseal, trained

    run = trained(small_spec, tmp_path_factory.mktemp("storage"), "done")
    reseal(run, 5, 8, 16, STEPS)
    return run


@pytest.fixture
def small_run(finished_run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of `finished_run`, in a storage folder of its own."""
    return type(finished_run)(shutil.copytree(finished_run.path, tmp_path / "runs" / "done"))


@pytest.fixture
def god_ray_here(
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process, where the default storage is empty: (exit code, stdout, stderr)."""
    from god_ray import cli
    from god_ray.cli.options import STORAGE_VARIABLE

    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
    monkeypatch.delenv(STORAGE_VARIABLE, raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        interrupt = signal.getsignal(signal.SIGINT)
        code = cli.main([str(argument) for argument in arguments])
        signal.signal(signal.SIGINT, interrupt)  # a command's process ends here, this one does not
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """`machine("b")`: from here on this process has the disk of machine b."""

    def change(name: str) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    change("a")
    return change
