"""Fixtures for the whole suite."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from laws.crew import Crew
    from s3 import Endpoint


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray of our own with 4 CPUs, for the whole session."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=300_000_000,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Worker processes for runs without Ray; they live as long as the session, unless a test kills them."""
    from laws.crew import Crew

    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture(scope="session")
def quick_disk() -> Iterator[Path]:
    """A folder where fsync costs nothing, if there is one: what is tested is not the disk."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30
    with tempfile.TemporaryDirectory(prefix="god_ray-", dir=memory if roomy else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def rows_of(quick_disk: Path) -> Callable[..., str]:
    """Data sets by size: `rows_of(100, files=3)` is the path of a folder that is written once."""
    from laws.tables import write

    def path(num_rows: int, files: int = 1, group: int = 16, seed: int = 0) -> str:
        folder = quick_disk / f"data-{num_rows}-{files}-{group}-{seed}"
        return str(folder) if folder.exists() else write(folder, num_rows, files, group, seed)

    return path


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[Endpoint]:
    """A real S3 server on loopback, for the whole session."""
    from s3 import Endpoint

    endpoint = Endpoint.start()
    yield endpoint
    endpoint.stop()


@pytest.fixture
def s3(s3_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    """`s3://bucket`, new and empty, which this process and those that it starts reach through AWS_*."""
    from s3 import NOT_OURS

    for name, value in s3_endpoint.environment().items():
        monkeypatch.setenv(name, value)
    for name in NOT_OURS:
        monkeypatch.delenv(name, raising=False)
    return f"s3://{s3_endpoint.bucket()}"
