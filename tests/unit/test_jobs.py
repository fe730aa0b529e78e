"""What of a spec's folder travels, what a job is told, what its end means: with a cluster made of paper."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from god_ray.errors import DataError, UserError
from god_ray.jobs import package, submit

SPEC = """
recipe: recipe.py
data: {train: data, eval: [test.parquet, /far/away/more.parquet], preprocess: "pre.py:clean"}
batch_size: 16
epochs: 1
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "recipe.py": "recipe",
        "pre.py": "pre",
        "lib/net.py": "net",
        "data/a.parquet": "rows",
        "test.parquet": "rows",
        ".git/config": "git",
        ".env": "SECRET=1",
        "venv/pyvenv.cfg": "",
        "venv/lib/torch.py": "torch",
        "lib/__pycache__/net.pyc": "pyc",
        "runs/old/run.json": "{}",
        "elsewhere/old/run.json": "{}",
        "run.yaml": SPEC,
    }.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def prepared(project: Path, *changes: str) -> submit.Job:
    changes = (f"storage={project}/runs", *changes)
    return submit.prepare(str(project / "run.yaml"), changes, None, "/usr/bin/my python")


SENT = {"recipe.py", "pre.py", "lib/net.py", "data/a.parquet", "test.parquet", "run.yaml"}


def test_the_folder_travels_without_what_is_hidden_made_or_a_run(project: Path) -> None:
    job = prepared(project)
    assert set(job.package.files) == SENT
    stays = 'data.eval=["test.parquet", "/far/away/more.parquet"]'
    assert job.package.changes == (stays,)
    assert job.package.notes == ("not sent: /far/away/more.parquet; every node must see it there",)
    storage = f"{project}/runs"
    assert job.storage == storage
    assert job.entrypoint.startswith("exec '/usr/bin/my python' -m god_ray train ./run.yaml --name ")
    assert job.entrypoint.endswith(f" --storage {storage} --set '{stays}'")


def test_the_same_files_are_the_same_bytes(project: Path, tmp_path: Path) -> None:
    for name in ("first.zip", "second.zip"):
        os.utime(project / "recipe.py", (1e9, 1e9))
        prepared(project).package.write(tmp_path / name)
    assert (tmp_path / "first.zip").read_bytes() == (tmp_path / "second.zip").read_bytes()
    with ZipFile(tmp_path / "first.zip") as archive:
        assert set(archive.namelist()) == SENT
        assert archive.read("lib/net.py") == b"net"


def test_large_data_stays_and_is_read_where_it_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_DATA_BYTES", 7)
    job = prepared(project)
    assert set(job.package.files) == SENT - {"data/a.parquet", "test.parquet"}
    assert f'data.train=["{project}/data"]' in job.package.changes
    assert f"not sent: {project}/data; every node must see it there" in job.package.notes


def test_a_folder_that_is_too_large_is_refused_with_its_largest_entries(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "MAX_BYTES", 3_000_000)
    for number in range(3):
        (project / "lib" / f"{number}.bin").write_bytes(bytes(1_000_000))
    (project / "notes.bin").write_bytes(bytes(500_000))
    with pytest.raises(UserError) as caught:
        prepared(project)
    assert "4 MB in 10 files; the limit is 3 MB" in str(caught.value)
    assert "lib (3 MB in 4 files), notes.bin (0 MB in 1 file)" in str(caught.value)


def test_odd_things_in_the_folder_are_named_and_left(project: Path) -> None:
    (project / "lib" / "loop").symlink_to(project, target_is_directory=True)
    (project / "lib" / "gone").symlink_to(project / "nowhere")
    (project / "lib" / "linked.py").symlink_to(project / "recipe.py")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(project)  # the path of a socket must be short
        try:
            listening.bind("s")
        finally:
            os.chdir(here)
        job = prepared(project)
    assert set(job.package.files) == SENT | {"lib/linked.py"}
    assert [note for note in job.package.notes if "far" not in note] == [
        f"not sent: {project}/lib/gone, No such file or directory",
        f"not sent: {project}/lib/loop, a link to a folder",
        f"not sent: {project}/s, not a regular file",
    ]


def test_data_that_should_be_in_the_folder_must_be_there(project: Path) -> None:
    with pytest.raises(DataError, match="no data there"):
        prepared(project, "data.train=nowhere.parquet")


def test_what_was_asked_for_reaches_the_job(project: Path) -> None:
    job = prepared(project, "name=mine", "config.text='a; b'", "init_from=runs/old")
    assert job.run == "mine"
    assert "--name mine " in job.entrypoint
    assert "--set 'config.text='\"'\"'a; b'\"'\"''" in job.entrypoint
    assert f"--set 'init_from.path=\"{project}/runs/old\"'" in job.entrypoint
    assert "--set name" not in job.entrypoint


class Paper:
    """A cluster that keeps what it was told, and whose log connection breaks as scripted."""

    def __init__(self, *tails: list[str | Exception], ends: list[Any] = ()) -> None:  # type: ignore[assignment]
        self.tails, self.ends = list(tails), list(ends)
        self.told: dict[str, Any] = {}

    def submit_job(self, **told: Any) -> str:
        self.told = told
        return "job-1"

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        for said in self.tails.pop(0):
            if isinstance(said, Exception):
                raise said
            yield said

    def get_job_info(self, job_id: str) -> Any:
        return self.ends.pop(0)


def details(state: str, code: int | None = None) -> Any:
    status = SimpleNamespace(value=state, is_terminal=lambda: state not in ("PENDING", "RUNNING"))
    return SimpleNamespace(status=status, driver_exit_code=code, message="it broke", entrypoint="exec x")


def test_nothing_of_the_environment_travels(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2000):
        monkeypatch.setenv(f"LEAK_{number}", "x")
    monkeypatch.setenv("LEAK_LONG", "x" * 200_000)
    monkeypatch.setenv("LEAK_LINES", "one\ntwo")
    cluster = Paper()
    assert submit.submit(cluster, prepared(project)) == "job-1"
    environment = cluster.told["runtime_env"]
    assert set(environment) == {"working_dir", "env_vars"}
    assert environment["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "60"}
    assert "LEAK" not in str(cluster.told)


def test_a_log_that_breaks_off_is_taken_up_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(submit, "sleep", pauses.append)
    cluster = Paper(
        ["one\ntw", RuntimeError("closed")],
        ["one\ntwo\nth", OSError("reset")],
        ["one\n", "two\nthree\n"],
        ["one\ntwo\nthree\nfour\n"],
        ends=[details("RUNNING"), details("SUCCEEDED", 0)],
    )
    said: list[str] = []
    assert submit.follow(cluster, "job-1", said.append) == 0
    assert "".join(said) == "one\ntwo\nthree\nfour\n"
    assert len(pauses) == 3


def test_a_cluster_that_never_answers_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr(submit, "sleep", lambda seconds: None)
    monkeypatch.setattr(submit, "monotonic", lambda: next(clock))
    cluster = Paper(["one\n", OSError("gone")], *[[OSError("gone")] for _ in range(9)])
    said: list[str] = []
    assert submit.follow(cluster, "job-1", said.append) == 101
    assert "has not answered for 60 s (gone)" in said[-1]


@pytest.mark.parametrize(
    ("state", "code", "expected", "words"),
    [
        ("SUCCEEDED", 0, 0, ""),
        ("STOPPED", None, 103, "stopped"),
        ("FAILED", 2, 2, ""),
        ("FAILED", 100, 100, ""),
        ("FAILED", 103, 103, ""),
        ("FAILED", -9, 101, "signal 9"),
        ("FAILED", None, 100, "it broke"),
        ("FAILED", 77, 100, "it broke"),
    ],
)
def test_the_exit_code_of_a_job(state: str, code: int | None, expected: int, words: str) -> None:
    found, message = submit.outcome(details(state, code))
    assert found == expected
    assert words in message


def test_a_missing_interpreter_is_the_users_to_name() -> None:
    with pytest.raises(UserError, match="--python"):
        submit.outcome(details("FAILED", 127))


def test_a_function_that_gives_the_rows_travels_with_its_file(project: Path) -> None:
    (project / "rows.py").write_text("rows")
    package = prepared(project, "data.train=rows.py:train", "data.eval=null").package
    assert set(package.files) == SENT | {"rows.py"}
    assert package.changes == ()
