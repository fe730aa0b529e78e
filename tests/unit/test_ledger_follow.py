"""A follower sees each line once, in order, whatever the writer does in the meantime."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ledger import fill, record, steps

from god_ray.monitor.ledger import Ledger
from god_ray.monitor.lines import LIVE, Follower


def polled(follower: Follower) -> list[int]:
    return [line["step"] for line in follower.poll()]


def test_it_gives_what_is_new(tmp_path: Path) -> None:
    follower = Ledger.tail(tmp_path / "ledger")
    assert polled(follower) == []  # not even a folder yet
    with Ledger.open_writer(tmp_path / "ledger") as ledger:
        assert polled(follower) == []
        ledger.publish(record(1))
        ledger.publish(record(2))
        assert polled(follower) == [1, 2]
        assert polled(follower) == []
        ledger.publish(record(3))
        ledger.seal()
        assert polled(follower) == [3]
        ledger.publish(record(4))
        assert polled(follower) == [4]
        for step in range(5, 12):  # several segments between two polls
            ledger.publish(record(step))
            if step % 2:
                ledger.seal()
        assert polled(follower) == list(range(5, 12))
    follower.close()
    assert polled(follower) == []


def test_it_starts_where_it_is_told(tmp_path: Path) -> None:
    fill(tmp_path, 9, (3, 6))
    assert polled(Ledger.tail(tmp_path, 5)) == [5, 6, 7, 8, 9]
    late = Ledger.tail(tmp_path, 11)
    assert polled(late) == []
    fill(tmp_path, 12)
    assert polled(late) == [11, 12]


def test_half_a_line_is_waited_for_or_forgotten(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    follower = Ledger.tail(tmp_path)
    assert polled(follower) == [1, 2]
    with open(tmp_path / LIVE, "ab") as file:
        file.write(b'{"step":3,"lo')
    assert polled(follower) == []
    fill(tmp_path, 4)  # the next writer drops the half line and writes its own
    assert polled(follower) == [3, 4]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["publish", "seal", "poll", "reopen", "tear"]), max_size=40))
def test_any_order_of_events(tmp_path_factory: pytest.TempPathFactory, events: list[str]) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    follower, seen = Ledger.tail(folder), []
    ledger = Ledger.open_writer(folder)
    for event in events:
        if event == "publish":
            ledger.publish(record(ledger.last_step + 1))
        elif event == "seal":
            ledger.seal()
        elif event == "poll":
            seen += polled(follower)
            assert seen == list(range(1, ledger.last_step + 1))
        else:
            ledger.close()
            if event == "tear":
                with open(folder / LIVE, "ab") as file:
                    file.write(b'{"step":')
            ledger = Ledger.open_writer(folder)
    seen += polled(follower)
    assert seen == list(range(1, ledger.last_step + 1))
    follower.close()
    ledger.close()


def test_readers_race_with_a_writer_that_seals_all_the_time(tmp_path: Path) -> None:
    last = 1500
    done = threading.Event()

    def follow() -> None:
        follower, seen = Ledger.tail(tmp_path), []
        while not done.is_set():
            seen += polled(follower)
        seen += polled(follower)
        assert seen == list(range(1, last + 1))

    def reread() -> None:
        while not done.is_set():
            seen = steps(tmp_path)
            assert seen == list(range(1, len(seen) + 1))

    with ThreadPoolExecutor() as threads, Ledger.open_writer(tmp_path) as ledger:
        readers = [threads.submit(follow), threads.submit(reread)]
        try:
            for step in range(1, last + 1):
                ledger.publish(record(step))
                if step % 11 == 0:
                    ledger.seal()
        finally:
            done.set()
        for reader in readers:
            reader.result(60)


def test_it_leaves_no_file_open(tmp_path: Path) -> None:
    fill(tmp_path, 5, (2,))
    before = len(os.listdir("/proc/self/fd"))
    reader = Ledger.read(tmp_path)
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    list(Ledger.read(tmp_path))
    follower = Ledger.tail(tmp_path)
    follower.poll()
    follower.close()
    assert len(os.listdir("/proc/self/fd")) == before
