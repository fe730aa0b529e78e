"""A trainer that stands still, and data several times larger than Ray's object store: nothing is spilled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from waiting import until

from god_ray.ingest import ahead, raydata
from god_ray.ingest.feed import Feed, open_feed
from god_ray.ingest.parquet import ParquetSource
from god_ray.plan import DataPlan

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]
STORE_BYTES = 300_000_000
"""Of the cluster of the tests."""
WIDTH, GROUP_ROWS, GROUPS, FILES, WINDOW = 64, 10_000, 120, 8, 4
BLOCK_BYTES = WINDOW * GROUP_ROWS * (WIDTH * 4 + 24)
"""Of a window, with the hidden columns."""
MOST_BLOCKS = 12
"""Of a worker: its share of the store, two windows, two tables that wait, one in hand, one in flight."""
ROUNDS = 40
"""Of the scheduling loop of each, while nobody takes a row: time enough to fill the store many times over."""


def store() -> tuple[int, int]:
    """(bytes in it, bytes ever spilled)"""
    address = ray.get_runtime_context().gcs_address
    stats = get_memory_info_reply(get_state_from_address(address)).store_stats
    return stats.object_store_bytes_used, stats.spilled_bytes_total


@pytest.fixture
def source(tmp_path: Path) -> ParquetSource:
    """2.5 GB of zeros, which take little of a disk."""
    zeros = pa.array(np.zeros(GROUP_ROWS * WIDTH, np.float32))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(zeros, WIDTH)})
    for index in range(FILES):
        with pq.ParquetWriter(tmp_path / f"{index}.parquet", table.schema, compression="zstd") as writer:
            for _ in range(GROUPS):
                writer.write_table(table, row_group_size=GROUP_ROWS)
    return ParquetSource.open([str(tmp_path)])


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes in the store in each round of Ray's scheduling loops."""
    seen: list[int] = []
    rest = raydata.RayExecution.rest

    def counted(execution: raydata.RayExecution) -> None:
        seen.append(store()[0])
        rest(execution)

    monkeypatch.setattr(raydata.RayExecution, "rest", counted)
    monkeypatch.setattr(raydata, "REST_S", 0.2)
    monkeypatch.setattr(ahead, "FIRST_TASKS", ahead.MAX_TASKS)  # the whole set at once
    return seen


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_stand_still(source: ParquetSource, rounds: list[int], workers: int) -> None:
    """Each has its share of the store for what Ray brings, and holds what it has taken: no more, for ever."""
    size = source.manifest.num_rows * source.row_bytes
    assert size > 8 * STORE_BYTES
    before, spilled_before = store()
    plan = DataPlan(source.manifest, 250 * workers, workers, 1, "window", WINDOW, 2)
    feeds: list[Feed] = [open_feed(source, plan, reader="ray") for _ in range(workers)]
    try:
        for lane, feed in enumerate(feeds):
            feed.start(plan.cursor_at(0), range(lane, lane + 1))
            assert feed.leaf(plan.cursor_at(0), lane) is not None
        until(lambda: max([0, *rounds]) - before > BLOCK_BYTES, "Ray has brought something")
        seen = len(rounds)
        until(lambda: len(rounds) > seen + workers * ROUNDS, "Ray would have brought more")
        held, spilled = max(rounds) - before, store()[1] - spilled_before
        print(f"{size:,} bytes of data, {held:,} held in the store, {spilled:,} spilled")
        assert held + spilled <= workers * MOST_BLOCKS * BLOCK_BYTES
        if workers * MOST_BLOCKS * BLOCK_BYTES < STORE_BYTES:
            assert spilled == 0
    finally:
        for feed in feeds:
            feed.close()
