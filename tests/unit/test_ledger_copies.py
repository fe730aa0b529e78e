"""A ledger's copy in a store: pushed by the machine that writes it, pulled by one that goes on or looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from god_ray.monitor import copies, lines
from god_ray.monitor.ledger import Ledger
from god_ray.storage.local import LocalStore
from god_ray.storage.store import Store, open_store, write_bytes


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "s3":
        return open_store(f"{request.getfixturevalue('s3')}/run")
    return LocalStore(tmp_path / "store")


def written(folder: Path, first: int, last: int, seal_at: tuple[int, ...] = ()) -> None:
    with Ledger.open_writer(folder) as ledger:
        for step in range(first, last + 1):
            ledger.publish({"step": step, "loss": step / 8})
            if step in seal_at:
                ledger.seal()


def steps(folder: Path) -> list[int]:
    return [record["step"] for record in Ledger.read(folder)]


def test_another_machine_has_what_was_pushed(store: Store, tmp_path: Path) -> None:
    written(tmp_path / "a", 1, 10, seal_at=(4, 7))
    copies.push(tmp_path / "a", store)
    assert list(store.list("ledger")) == [
        "ledger/00000001-00000004.jsonl",
        "ledger/00000005-00000007.jsonl",
        "ledger/live.jsonl",
    ]
    copies.pull(tmp_path / "b", store)
    assert list(Ledger.read(tmp_path / "b")) == list(Ledger.read(tmp_path / "a"))
    assert steps(tmp_path / "b") == list(range(1, 11))


def test_a_line_that_was_sealed_after_the_push_is_there_once(store: Store, tmp_path: Path) -> None:
    written(tmp_path / "a", 1, 5)
    copies.push(tmp_path / "a", store)
    written(tmp_path / "a", 6, 8, seal_at=(7,))
    copies.pull(tmp_path / "a", store)
    assert steps(tmp_path / "a") == list(range(1, 9))
    copies.push(tmp_path / "a", store)
    copies.pull(tmp_path / "b", store)
    assert steps(tmp_path / "b") == list(range(1, 9))


def test_the_leader_moves_to_another_machine_and_back(store: Store, tmp_path: Path) -> None:
    written(tmp_path / "a", 1, 10, seal_at=(4,))
    copies.push(tmp_path / "a", store)
    written(tmp_path / "a", 11, 12, seal_at=(11,))  # and dies before the next push
    copies.pull(tmp_path / "b", store)
    written(tmp_path / "b", 11, 20, seal_at=(18,))
    copies.push(tmp_path / "b", store)
    copies.pull(tmp_path / "a", store)
    assert steps(tmp_path / "a") == list(range(1, 21))
    assert [s.path.name for s in lines.segments(tmp_path / "a")] == [
        "00000001-00000004.jsonl",
        "00000005-00000018.jsonl",
    ]
    written(tmp_path / "a", 21, 21)  # opening a ledger refuses gaps and doubles


def test_lines_beyond_the_store_stay(store: Store, tmp_path: Path) -> None:
    written(tmp_path / "a", 1, 4)
    copies.push(tmp_path / "a", store)
    written(tmp_path / "a", 5, 9, seal_at=(8,))
    copies.pull(tmp_path / "a", store)
    assert steps(tmp_path / "a") == list(range(1, 10))


def test_a_writer_at_work_is_left_alone(store: Store, tmp_path: Path) -> None:
    written(tmp_path / "a", 1, 3)
    copies.push(tmp_path / "a", store)
    with Ledger.open_writer(tmp_path / "a") as ledger:
        ledger.publish({"step": 4})
        copies.pull(tmp_path / "a", store)
        ledger.publish({"step": 5})
    assert steps(tmp_path / "a") == [1, 2, 3, 4, 5]


def test_a_torn_line_is_neither_pushed_nor_kept(store: Store, tmp_path: Path) -> None:
    written(tmp_path / "a", 1, 3)
    with (tmp_path / "a" / lines.LIVE).open("ab") as file:
        file.write(b'{"step":4,"lo')
    copies.push(tmp_path / "a", store)
    assert store.read("ledger/live.jsonl").count(b"\n") == 3
    copies.pull(tmp_path / "a", store)
    assert steps(tmp_path / "a") == [1, 2, 3]


def test_a_folder_that_was_copied_with_a_torn_line(store: Store, tmp_path: Path) -> None:
    write_bytes(store, "ledger/live.jsonl", b'{"step":1}\n{"step":2}\n{"st')
    copies.pull(tmp_path / "a", store)
    written(tmp_path / "a", 3, 3)
    assert steps(tmp_path / "a") == [1, 2, 3]


def test_a_segment_that_was_cut_short_here_is_fetched_again(store: Store, tmp_path: Path) -> None:
    written(tmp_path / "a", 1, 6, seal_at=(6,))
    copies.push(tmp_path / "a", store)
    segment = lines.segments(tmp_path / "a")[0].path
    whole = segment.read_bytes()
    segment.write_bytes(whole[:40])
    copies.pull(tmp_path / "a", store)
    assert segment.read_bytes() == whole
    assert steps(tmp_path / "a") == list(range(1, 7))
