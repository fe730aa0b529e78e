"""What `god-ray check` finds in the data itself: damaged pages, nulls, row groups that are costly to read.

In: opened sources by the key of the spec that names them. Out: faults, facts under stable keys, warnings in
words. Small sets are read through, larger ones when asked to. Nothing here fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from god_ray.ingest.fault import refuse
from god_ray.ingest.pages import read_pages
from god_ray.ingest.parquet import ParquetSource
from god_ray.plan import MAX_FRAGMENT_ROWS
from god_ray.runtime.fault import Fault, faults_of
from god_ray.saying import Say, Ticker
from god_ray.spec import RunSpec

LARGE_GROUP_ROWS = 8 * MAX_FRAGMENT_ROWS
_SMALL_BYTES = 64 << 20


def read_through(
    sources: Mapping[str, ParquetSource],
    limit_bytes: int | None,
    say: Say,
    facts: dict[str, Any],
    warnings: list[str],
) -> Iterator[Fault]:
    """Every page of the sets that decode to at most `limit_bytes`, as far as the footers tell; None: of all.

    Adds how many files were not read, and says so.
    """
    facts["files_not_read"] = 0
    for key, source in sources.items():
        expected = source.decoded_bytes
        if limit_bytes is not None and expected > limit_bytes:
            facts["files_not_read"] += len(source.manifest.files)
            continue
        pages = read_pages(source, Ticker(f"reading {key}", source.manifest.num_rows, say, "rows", 1).tick)
        if pages.faults:
            yield from faults_of(refuse(pages.faults), key)
        elif pages.decoded_bytes > 4 * max(expected, _SMALL_BYTES):
            text = f"{key}: {pages.decoded_bytes / 1e9:.1f} GB decoded, not {expected / 1e9:.1f} GB"
            warnings.append(f"{text}; with data.shuffle: window it is never held as a whole")
    if facts["files_not_read"]:
        text = f"pages of {facts['files_not_read']} files were not read"
        warnings.append(f"{text}; god-ray check SPEC --pages reads them all")


def weigh_groups(source: ParquetSource, spec: RunSpec, facts: dict[str, Any], warnings: list[str]) -> None:
    """What reading the training rows will cost."""
    path, rows, stored_bytes = source.largest_group()
    facts["largest_row_group"] = {"file": path, "rows": rows, "stored_bytes": stored_bytes}
    fits = source.decoded_bytes <= spec.data.memory_bytes
    windows = spec.data.shuffle in ("window", "none") or (spec.data.shuffle == "auto" and not fits)
    if windows and rows > LARGE_GROUP_ROWS:
        text = f"{path} has a row group of {rows} rows, {stored_bytes / 1e6:.0f} MB in the columns used"
        cost = "it can only be decoded from its front, which each window does again"
        warnings.append(f"{text}; {cost}; write row groups of at most {LARGE_GROUP_ROWS} rows")
