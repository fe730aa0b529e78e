"""The paragraphs of this repository's own pages, as text.

In: README.md, CONTRIBUTING.md and docs/. Out: `train` and `test`, tables with one column `text`, a row for
each paragraph; every eighth one is for the test.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
TEST_EVERY = 8


def paragraphs() -> list[str]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [part for page in pages for part in page.read_text(encoding="utf-8").split("\n\n")]
    return [text for text in texts if len(text.split()) > 2]


def train() -> pa.Table:
    return pa.table({"text": [text for number, text in enumerate(paragraphs()) if number % TEST_EVERY]})


def test() -> pa.Table:
    return pa.table({"text": paragraphs()[::TEST_EVERY]})
