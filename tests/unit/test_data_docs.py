"""docs/data.md and the tests of the kinds of data tell the same: one row, one test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ("unit/test_data_kinds.py", "unit/test_data_files.py")


def test_each_row_has_a_test_and_each_test_a_row() -> None:
    rows = [line for line in (ROOT / "docs/data.md").read_text().splitlines() if line.startswith("| ")][1:]
    named = [re.search(r"`(test_\w+)` \|$", row) for row in rows]
    assert all(named), "the last cell of a row is its test"
    there = [
        node.name
        for path in TESTS
        for node in ast.parse((ROOT / "tests" / path).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert sorted(match[1] for match in named if match) == sorted(there)
    assert all(row.count(" | ") == 3 for row in rows)
