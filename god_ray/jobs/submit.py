"""From a spec to a Ray job, and from the job to the exit code of its run.

In: a spec, a client of the cluster. Out: the job's id; its logs, as they come; its outcome. Checks the spec
before anything is sent. The job gets the variables named in `VARIABLES` and nothing else from here.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep, strftime
from typing import TYPE_CHECKING

from god_ray.errors import UserError
from god_ray.jobs.package import Package, pack
from god_ray.spec import load
from god_ray.spec.paths import absolute

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

# Ray kills a stopped job 3 s after SIGTERM; a run needs longer for its last step and checkpoint.
VARIABLES = {"RAY_JOB_STOP_WAIT_TIME_S": "60"}
LOST_AFTER_S = 60.0
CODES = frozenset({0, 1, 2, 100, 101, 102, 103, 130})
FAILED, NOT_FINISHED, STOPPED = 100, 101, 103


@dataclass(frozen=True)
class Job:
    """What to run where. `entrypoint` is a shell command in the unpacked package."""

    run: str
    storage: str
    entrypoint: str
    package: Package


def prepare(path: str, overrides: tuple[str, ...], default_storage: str | None, python: str) -> Job:
    """Check the spec and decide what is sent; nothing is sent yet. Raises SpecError, DataError or UserError.

    `default_storage` counts when the spec does not name one; `python` is the cluster's interpreter.
    """
    loaded = load(path, overrides)
    assert loaded.path is not None
    storage = loaded.spec.storage
    if default_storage and loaded.origins["storage"] == "default":
        storage = absolute(default_storage, Path.cwd())
    run = loaded.spec.name or f"{strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    package = pack(loaded, Path(storage))
    words = [python, "-m", "god_ray", "train", f"./{loaded.path.name}", "--name", run, "--storage", storage]
    for change in (*overrides, *package.changes):
        if change.partition("=")[0].strip() not in ("name", "storage"):
            words += ["--set", change]
    return Job(run, storage, f"exec {shlex.join(words)}", package)


def submit(cluster: JobSubmissionClient, job: Job) -> str:
    """Send it. Returns the id of the job; raises UserError when the cluster does not take it."""
    with TemporaryDirectory() as folder:
        archive = Path(folder) / "package.zip"
        job.package.write(archive)
        try:
            job_id = cluster.submit_job(
                entrypoint=job.entrypoint,
                runtime_env={"working_dir": str(archive), "env_vars": VARIABLES},
                metadata={"god_ray.run": job.run},
            )
        except (OSError, RuntimeError) as error:
            agent = "No available agent" in str(error)
            raise UserError(
                f"the cluster did not take the job: {error}",
                "Its head has no job agent yet, or another Ray on that machine holds the agent's port."
                if agent
                else "",
                "try again in a moment; if it stays, give the head a port of its own: ray start "
                "--dashboard-agent-listen-port."
                if agent
                else "",
            ) from error
    return str(job_id)


def follow(cluster: JobSubmissionClient, job_id: str, write: Callable[[str], object]) -> int:
    """Write the job's log as it grows; return the exit code once the job has ended.

    A lost connection is taken up again where it broke off, for LOST_AFTER_S; then the code is 101.
    """
    from aiohttp import ClientError

    log = _Log(cluster, job_id, write)
    heard_at = monotonic()
    while True:
        try:
            asyncio.run(log.follow())
            details = cluster.get_job_info(job_id)
        except (OSError, RuntimeError, ClientError) as error:
            if monotonic() - heard_at > LOST_AFTER_S:
                write(f"\nthe cluster has not answered for {LOST_AFTER_S:g} s ({error}); the job may go on\n")
                return NOT_FINISHED
        else:
            heard_at = monotonic()
            if details.status.is_terminal():
                code, message = outcome(details)
                write(message)
                return code
        sleep(1)  # between two attempts to hear of a job that goes on


class _Log:
    """What has been written of a job's log; Ray always sends it from the beginning."""

    def __init__(self, cluster: JobSubmissionClient, job_id: str, write: Callable[[str], object]) -> None:
        self._cluster, self._job_id, self._write = cluster, job_id, write
        self._written = 0

    async def follow(self) -> None:
        seen = 0
        async for text in self._cluster.tail_job_logs(self._job_id):
            seen += len(text)
            if seen > self._written:
                self._write(text[self._written - seen :])
                self._written = seen


def outcome(details: JobDetails) -> tuple[int, str]:
    """The exit code of an ended job, and what is to be said besides its log."""
    state, code = str(details.status.value), details.driver_exit_code
    if state == "SUCCEEDED":
        return 0, ""
    if state == "STOPPED":
        return STOPPED, "the job was stopped\n"
    if code in CODES:
        return int(code), ""
    if code in (126, 127):
        raise UserError(
            "the job could not start: the cluster cannot run its interpreter.",
            f"The command was: {details.entrypoint}",
            "name the Python there that has god_ray: --python python, or a path.",
        )
    if code is not None and code < 0:
        return (
            NOT_FINISHED,
            f"the job's driver was ended by signal {-code}; god-ray resume goes on with its run\n",
        )
    return FAILED, f"the job failed: {details.message}\n"
