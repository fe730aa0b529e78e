"""A ledger that does not have each step once is not written on; a part that cannot be read is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_ledger import fill, steps

from god_ray.errors import RunFailed
from god_ray.monitor.ledger import Ledger
from god_ray.monitor.lines import LIVE
from god_ray.monitor.newest import newest


def live_without(*gone: int) -> Any:
    def damage(folder: Path) -> None:
        kept = (folder / LIVE).read_bytes().splitlines(keepends=True)
        (folder / LIVE).write_bytes(b"".join(line for at, line in enumerate(kept, 7) if at not in gone))

    return damage


def live_twice(folder: Path) -> None:
    (folder / LIVE).write_bytes((folder / LIVE).read_bytes() * 2)


def live_damaged(folder: Path) -> None:
    (folder / LIVE).write_bytes((folder / LIVE).read_bytes().replace(b',"at":1717171725.5}', b',"at":17#', 1))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (live_without(8, 9), r"steps 8 to 9 are missing before step 10 of .*live\.jsonl"),
        (live_without(7), r"step 7 is missing before step 8 of .*live\.jsonl"),
        (live_damaged, r"step 8 is missing before step 9 of .*live\.jsonl"),
        (live_twice, r"steps 7 to 11 are double in .*live\.jsonl"),
        (lambda folder: (folder / LIVE).write_bytes((folder / "00000004-00000006.jsonl").read_bytes()),
         r"steps 4 to 6 are double in .*live\.jsonl"),
        (lambda folder: (folder / "00000004-00000006.jsonl").unlink(),
         r"steps 4 to 6 are missing before step 7 of .*live\.jsonl"),
        (lambda folder: (folder / "00000001-00000003.jsonl").unlink(),
         r"steps 1 to 3 are missing before step 4 of .*00000004-00000006\.jsonl"),
        (lambda folder: shutil.copy(folder / LIVE, folder / "00000006-00000007.jsonl"),
         r"step 6 is double in .*00000006-00000007\.jsonl"),
    ],
)  # fmt: skip
def test_a_ledger_with_missing_or_double_steps_is_not_written_on(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    fill(tmp_path, 11, (3, 6))
    damage(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    for _ in range(2):  # the lock is let go, too
        with pytest.raises(RunFailed, match=said) as caught:
            Ledger.open_writer(tmp_path, patience_s=0.0)
        assert caught.value.data["final"]
        assert "restore the file from a copy; god-ray verify" in caught.value.fix
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == before


def test_a_live_file_that_is_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / LIVE).mkdir()
    with pytest.raises(RunFailed, match=r"live\.jsonl cannot be opened for writing") as caught:
        Ledger.open_writer(tmp_path)
    assert caught.value.data["final"]
    for look in (steps, newest):
        with pytest.raises(RunFailed, match=r"live\.jsonl cannot be read\n  Is a directory\n  Fix: "):
            look(tmp_path)
