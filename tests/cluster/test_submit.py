"""`god-ray submit` on real Ray heads, with tokens and without: the run, its exit code, what travels."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import small_project
from small_project import god_ray

from god_ray.errors import UserError
from god_ray.jobs import submit as jobs
from god_ray.jobs.reach import reach

HOSTILE = {
    **{f"LEAK_{number}": "x" * 40 for number in range(2000)},
    "LEAK_LONG": "x" * 100_000,
    "LEAK_LINES": "first\nsecond",
    "BASH_FUNC_leak%%": "() { echo leak; }",
    "http_proxy": "http://127.0.0.1:9",
    "RAY_ADDRESS": "10.255.255.1:6379",
}


@dataclass(frozen=True)
class Head:
    address: str
    env: dict[str, str]
    """What a user's shell has: a home that may hold a token, and nothing about tokens besides."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about in {seconds} s"
        time.sleep(0.2)


def start_head(folder: Path, token: bool) -> tuple[Head, subprocess.Popen[bytes], Path]:
    """A head of our own: its own ports, its own temporary folder, a home of its own."""
    home = folder / "home"
    (home / ".ray").mkdir(parents=True)
    if token:
        (home / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "GOD_RAY_"))}
    env["HOME"] = str(home)
    port, dashboard, agent, client = free_ports(4)
    log = folder / "head.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                *(f"--port={port}", f"--dashboard-port={dashboard}", f"--temp-dir={folder / 'ray'}"),
                *(f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"),
                *("--num-cpus=4", "--object-store-memory=200000000", "--disable-usage-stats"),
            ],
            env=env | {"RAY_AUTH_MODE": "token" if token else "disabled"},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return (
        Head(
            f"http://127.0.0.1:{dashboard}",
            env,
        ),
        process,
        log,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """This head and what it started, by their ids; nothing of it is worth a graceful end."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.kill()
    process.wait()
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)


def running_head(folder: Path, token: bool) -> Iterator[Head]:
    head, process, log = start_head(folder, token)
    try:
        wait_for(
            lambda: b"Ray runtime started" in log.read_bytes() or process.poll() is not None, 90, "a head"
        )
        assert process.poll() is None, log.read_text()
        yield head
    finally:
        end(process)


@pytest.fixture(scope="module")
def open_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    yield from running_head(tmp_path_factory.mktemp("o"), token=False)


@pytest.fixture(scope="module")
def token_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    yield from running_head(tmp_path_factory.mktemp("t"), token=True)


@pytest.fixture(params=["open", "token"])
def head(request: pytest.FixtureRequest) -> Head:
    found: Head = request.getfixturevalue(f"{request.param}_head")
    return found


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return small_project.write(tmp_path / "project")


@pytest.mark.cluster
def test_a_spec_runs_as_a_job_and_takes_nothing_else_along(head: Head, spec: Path, tmp_path: Path) -> None:
    (spec.parent / ".env").write_text("SECRET=1")
    there = ("submit", spec, "--address", head.address, "--name", "first", "--storage", tmp_path / "runs")
    changes = ("--set", "config.lr=0.2", "--set", f"config.variables_to={tmp_path / 'variables'}")
    done = god_ray(*there, *changes, env=head.env | HOSTILE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"raysubmit_\w+\n", done.stdout)
    found = small_project.record(tmp_path / "runs" / "first")
    assert found["state"] == "SUCCEEDED"
    assert found["spec"]["config"]["lr"] == 0.2
    assert found["result"]["digest"] == small_project.reference_digest(
        spec, tmp_path / "reference", "config.lr=0.2"
    )
    variables = (tmp_path / "variables").read_text().split()
    assert "RAY_JOB_STOP_WAIT_TIME_S" in variables
    assert not [name for name in variables if name.startswith(("LEAK", "BASH_FUNC", "http_proxy"))]
    sent = Path(found["spec"]["recipe"]).parent
    assert sent != spec.parent
    assert {path.name for path in sent.iterdir() if path.name != "__pycache__"} == {
        "recipe.py",
        "layers.py",
        "run.yaml",
        "data",
    }


@pytest.mark.cluster
def test_the_exit_code_is_the_jobs(open_head: Head, spec: Path, tmp_path: Path) -> None:
    there = ("submit", spec, "--address", open_head.address, "--storage", tmp_path / "runs")
    done = god_ray(*there, "--set", "data.columns=[x, z]", env=open_head.env, cwd=tmp_path)
    assert done.returncode == 2
    assert "data.columns" in done.stderr
    done = god_ray(*there, "--python", "/no/such/python", env=open_head.env, cwd=tmp_path)
    assert done.returncode == 2
    assert "--python" in done.stderr


@pytest.mark.cluster
def test_a_stopped_job_leaves_a_stopped_run(
    open_head: Head, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "long"
    there = ("submit", spec, "--address", open_head.address, "--storage", run.parent, "--name", "long")
    done = god_ray(*there, "--no-follow", "--set", "epochs=100000", env=open_head.env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: (run / "ledger" / "live.jsonl").exists(), 90, "a first step")
    monkeypatch.setenv("HOME", open_head.env["HOME"])
    said: list[str] = []
    with reach(open_head.address) as cluster:
        assert cluster.get_job_info(done.stdout.strip()).metadata["god_ray.run"] == "long"
        cluster.stop_job(done.stdout.strip())
        assert jobs.follow(cluster, done.stdout.strip(), said.append) == 103
    assert small_project.record(run)["state"] == "STOPPED"
    assert list((run / "checkpoints").glob("step-*/manifest.json")), "it had no time for a checkpoint"


@pytest.mark.cluster
def test_a_wrong_token_is_named(token_head: Head, spec: Path, tmp_path: Path) -> None:
    there = ("submit", spec, "--address", token_head.address, "--storage", tmp_path / "runs")
    for env, words in (
        (token_head.env | {"HOME": str(tmp_path)}, "there is none"),
        (token_head.env | {"RAY_AUTH_TOKEN": "wrong" * 10}, "refused the token"),
    ):
        done = god_ray(*there, env=env, cwd=tmp_path)
        assert done.returncode == 2
        assert words in done.stderr
        assert "RAY_AUTH_TOKEN" in done.stderr
        assert done.stdout == ""


def test_a_cluster_that_is_not_there_is_named(spec: Path, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    done = god_ray("submit", spec, "--address", address, cwd=tmp_path)
    assert done.returncode == 2
    assert f"no Ray cluster answers at {address}: [Errno 111] Connection refused" in done.stderr
    assert "ray start --head" in done.stderr


def test_faults_of_the_spec_come_before_the_cluster(spec: Path, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    done = god_ray("submit", spec, "--address", address, "--set", "batch_sise=2", cwd=tmp_path)
    assert done.returncode == 2
    assert "batch_size" in done.stderr
    assert address not in done.stderr


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="not the address of a job server"), reach("127.0.0.1:6379"):
        pass
