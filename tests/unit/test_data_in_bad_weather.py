"""Data in a bucket whose endpoint fails or refuses: what is told, and what is read anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flaky_s3 import Flaky, answer, matching, only_key
from s3 import Endpoint, key_file

from god_ray.errors import DataError
from god_ray.ingest.parquet import ParquetSource
from god_ray.storage import inputs
from god_ray.storage.retrying import Retrying
from god_ray.storage.tries import Patience


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are tried again at once."""
    patience = Patience(first_pause_s=0.01, longest_pause_s=0.01)
    monkeypatch.setattr(inputs, "_retrying", Retrying(patience, inputs._opened.cache_clear))


@pytest.fixture
def flaky(s3: str, s3_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    inputs._opened.cache_clear()  # every test has its own endpoint
    with Flaky(s3_endpoint.address) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        yield proxy
    inputs._opened.cache_clear()


@pytest.fixture
def in_bucket(s3: str, s3_endpoint: Endpoint) -> str:
    """The URI of a file of 10 rows."""
    root = s3.removeprefix("s3://")
    with s3_endpoint.filesystem().open_output_stream(f"{root}/x.parquet") as stream:
        pq.write_table(pa.table({"x": np.arange(10.0)}), stream)
    return f"{s3}/x.parquet"


def test_a_store_that_does_not_answer_is_no_damage_to_a_file(
    in_bucket: str, flaky: Flaky, quick: None
) -> None:
    """Nobody is told to remove a file because the network was down."""
    flaky.plan = matching(r"GET .*x\.parquet", answer(503, "SlowDown"))
    with pytest.raises(DataError, match=r"it cannot be read \(.*tried 8 times\)") as caught:
        ParquetSource.open([in_bucket])
    assert "not a whole Parquet file" not in str(caught.value)


def test_credentials_that_expire_while_rows_are_read_are_read_anew(
    in_bucket: str, flaky: Flaky, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite = key_file(tmp_path, monkeypatch)
    valid = [rewrite("FIRST")]
    flaky.plan = only_key(lambda: valid[-1], answer(400, "ExpiredToken"))
    source = ParquetSource.open([in_bucket])
    assert source.read(0, 0, 5)["x"].to_pylist() == [0, 1, 2, 3, 4]
    valid.append(rewrite("SECOND"))
    assert source.read(0, 5, 10)["x"].to_pylist() == [5, 6, 7, 8, 9]
    assert flaky.seen[-1].access_key == "SECOND"
