"""Odd kinds of data come through Ray Data as they come directly: the same tensors, the same tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from god_ray.ingest.feed import Feed, open_feed
from god_ray.ingest.parquet import ParquetSource

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from data_kinds import files
from ingest_data import plan_of, weighing

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]
ROWS = 400
PLENTY_S = 60.0


def half(kind: pa.DataType | None, first: int) -> dict[str, Any]:
    """One of two files; they differ in types, order of columns and dictionary codes."""
    ids = np.arange(first, first + ROWS)
    words = pa.array([f"word {i % 7 + first}" for i in ids])
    return {
        "id": pa.array(ids, kind or pa.int64()),
        "big": pa.array((1 << 62) + ids),
        "half": pa.array((ids / 8).astype(np.float16)),
        "flag": pa.array(ids % 3 == 0),
        "pair": pa.array([[i, -i] for i in ids.tolist()], pa.list_(pa.float32(), 2)),
        "word": words.dictionary_encode() if kind else words,
        "when": pa.array(ids * 10**13, pa.timestamp("us", "America/New_York")),
        "gap": pa.nulls(ROWS) if kind else pa.array([i if i % 2 else None for i in ids.tolist()]),
        "cent": pa.array(ids.tolist()).cast(pa.decimal128(20, 0)),
        "tree": pa.array([{"a": [i], "b": None} for i in ids.tolist()], TREE),
    }


TREE = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files(tmp_path_factory.mktemp("kinds"), half(pa.int32(), 0), half(None, ROWS))


def leaves(feed: Feed, plan: Any) -> Iterator[dict[str, Tensor]]:
    feed.start(plan.cursor_at(0), range(plan.lanes))
    for step in range(plan.steps_per_epoch):
        for lane in range(plan.lanes):
            leaf = feed.leaf(plan.cursor_at(step), lane)
            if leaf is not None:
                yield leaf.batch
    feed.close()


def both(data: Path, columns: list[str] | None, collate: Callable[..., Any] | None) -> list[list[Any]]:
    """What comes through Ray, and what comes directly."""
    found = []
    source = ParquetSource.open([str(data)], columns, allow_any=collate is not None)
    source = weighing(source, 1 << 16)  # so that Ray is asked for it
    plan = plan_of(source, "full", 100, 2)
    for reader in ("ray", "direct"):
        feed = open_feed(source, plan, reader=reader, collate=collate, patience_s=PLENTY_S)  # type: ignore[arg-type]
        found.append(list(leaves(feed, plan)))
        assert (feed.counters["rows_by_ray"] > 0) == (reader == "ray")
    return found


def test_tensors(data: Path) -> None:
    by_ray, directly = both(data, ["id", "big", "half", "flag", "pair"], None)
    for one, other in zip(by_ray, directly, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert value.dtype == other[name].dtype
            assert value.numpy().tobytes() == other[name].numpy().tobytes()
    ids = torch.cat([batch["id"] for batch in by_ray])
    assert ids.dtype == torch.int64
    assert ids.sort().values.tolist() == list(range(2 * ROWS))
    assert torch.equal(torch.cat([batch["big"] for batch in by_ray]), ids + (1 << 62))


def test_tables(data: Path) -> None:
    seen: list[pa.Table] = []

    def collate(table: pa.Table) -> dict[str, Tensor]:
        seen.append(table)
        return {"n": torch.zeros(table.num_rows)}

    both(data, None, collate)
    middle = len(seen) // 2
    for one, other in zip(seen[:middle], seen[middle:], strict=True):
        assert one.schema.equals(other.schema)
        assert one.to_pylist() == other.to_pylist()
    rows = sorted((row for table in seen[:middle] for row in table.to_pylist()), key=lambda row: row["id"])
    halves = [half(pa.int32(), 0), half(None, ROWS)]
    expected = [row for columns in halves for row in pa.table(columns).to_pylist()]
    assert rows == expected
    kinds = {field.name: str(field.type) for field in seen[0].schema}
    assert kinds["word"] == "large_string"
    assert kinds["when"] == "timestamp[us, tz=America/New_York]"
    assert (kinds["gap"], kinds["cent"]) == ("int64", "decimal128(20, 0)")
