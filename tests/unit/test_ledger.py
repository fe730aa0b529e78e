"""The ledger has each step once, in order, in strict JSON; a replayed step is compared, not written again."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from god_ray.errors import Bug, LedgerMismatch, RunFailed
from god_ray.monitor.ledger import Ledger
from god_ray.monitor.lines import LIVE


def record(step: int, **changes: Any) -> dict[str, Any]:
    made = {
        "step": step,
        "epoch": (step - 1) // 10,
        "step_in_epoch": (step - 1) % 10,
        "num_rows": 256,
        "row_checksum": str(2**64 - step),
        "loss": 1 / max(step, 1),
        "lr": 0.1,
        "grad_norm": None,
        "generation": 1,
        "num_workers": 2,
        "timings": {"data_s": 0.001, "step_s": 0.004},
        "at": 1717171717.5 + step,
    }
    return made | changes


def fill(folder: Path, last: int, seal_at: tuple[int, ...] = ()) -> None:
    with Ledger.open_writer(folder) as ledger:
        for step in range(ledger.last_step + 1, last + 1):
            assert ledger.publish(record(step)) == "new"
            if step in seal_at:
                ledger.seal()


def steps(folder: Path, from_step: int = 0) -> list[int]:
    return [line["step"] for line in Ledger.read(folder, from_step)]


def test_what_is_published_is_read(tmp_path: Path) -> None:
    fill(tmp_path, 25)
    assert list(Ledger.read(tmp_path)) == [record(step) for step in range(1, 26)]
    assert steps(tmp_path, 20) == [20, 21, 22, 23, 24, 25]
    assert steps(tmp_path, 26) == []


def test_a_folder_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert list(Ledger.read(tmp_path / "none")) == []
    assert list(Ledger.read(tmp_path)) == []


@pytest.mark.parametrize("seal_at", [(10,), (1, 2, 30), (7, 19, 25), (30,)])
def test_segments_are_immutable_and_read_through(tmp_path: Path, seal_at: tuple[int, ...]) -> None:
    fill(tmp_path, 12, seal_at)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*-*.jsonl")}
    fill(tmp_path, 30, seal_at)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    for start in (0, 1, 7, 8, 19, 20, 30, 31):
        assert steps(tmp_path, start) == list(range(max(1, start), 31))
    firsts = [1, *(step + 1 for step in seal_at)]
    expected = [f"{first:08d}-{last:08d}.jsonl" for first, last in zip(firsts, seal_at)]
    assert sorted(path.name for path in tmp_path.glob("*-*.jsonl")) == expected


def test_sealing_nothing_makes_no_segment(tmp_path: Path) -> None:
    with Ledger.open_writer(tmp_path) as ledger:
        ledger.seal()
        ledger.publish(record(1))
        ledger.seal()
        ledger.seal()
    assert sorted(os.listdir(tmp_path)) == [".lock", "00000001-00000001.jsonl", LIVE]


def test_one_line_is_one_write_of_strict_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = os.write

    def counting(handle: int, line: bytes) -> int:
        written.append(line)
        return write(handle, line)

    with Ledger.open_writer(tmp_path) as ledger:
        monkeypatch.setattr(os, "write", counting)
        evaluation = {"accuracy": math.nan, "num_rows": 21}
        odd = record(1, loss=math.nan, lr=math.inf, grad_norm=-math.inf, eval=evaluation, name="ü\n\0")
        ledger.publish(odd)
    assert len(written) == 1
    assert written[0].count(b"\n") == 1

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    said = json.loads((tmp_path / LIVE).read_text(), parse_constant=refuse)
    assert (said["loss"], said["lr"], said["grad_norm"]) == ("NaN", "Infinity", "-Infinity")
    assert said["eval"] == {"accuracy": "NaN", "num_rows": 21}
    assert said["name"] == "ü\n\0"
    assert math.isnan(float(next(Ledger.read(tmp_path))["loss"]))


@given(st.floats())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_numbers_keep_their_bits(tmp_path_factory: pytest.TempPathFactory, value: float) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    with Ledger.open_writer(folder) as ledger:
        ledger.publish(record(1, loss=value))
        assert ledger.publish(record(1, loss=value)) == "same"
    back = float(next(Ledger.read(folder))["loss"])
    assert back == value or (math.isnan(back) and math.isnan(value))
    assert math.copysign(1, back) == math.copysign(1, value) or math.isnan(value)


@pytest.mark.parametrize("step", [0, -1, 2, 5])
def test_a_gap_is_our_bug(tmp_path: Path, step: int) -> None:
    with (
        Ledger.open_writer(tmp_path) as ledger,
        pytest.raises(Bug, match=f"step {step} was published after step 0"),
    ):
        ledger.publish(record(step))
    assert steps(tmp_path) == []


# ---- replay


@pytest.mark.parametrize("seal_at", [(), (4,), (3, 6, 9)])
def test_a_replay_that_equals_is_the_same_and_writes_nothing(
    tmp_path: Path, seal_at: tuple[int, ...]
) -> None:
    fill(tmp_path, 10, seal_at)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    with Ledger.open_writer(tmp_path) as ledger:
        assert ledger.last_step == 10
        for start in (4, 9, 2):  # resumed from there, again and again
            for step in range(start, 11):
                again = record(step, generation=9, num_workers=1, timings={}, at=0.0)
                assert ledger.publish(again) == "same"
        assert {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == before
        assert ledger.publish(record(11)) == "new"
    assert steps(tmp_path) == list(range(1, 12))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("loss", 0.25000000000000006, "0.25000000000000006; the ledger says 0.25"),
        ("loss", math.nan, "'NaN'; the ledger says 0.25"),
        ("row_checksum", "1", "'1'; the ledger says '18446744073709551612'"),
        ("num_rows", 255, "255; the ledger says 256"),
        ("epoch", 1, "1; the ledger says 0"),
        ("eval", {"accuracy": 1.0}, "{'accuracy': 1.0}; the ledger says None"),
        ("surprise", 1, "1; the ledger says None"),
    ],
)
def test_a_replay_that_differs_names_step_key_and_both_values(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    fill(tmp_path, 6)
    with Ledger.open_writer(tmp_path) as ledger, pytest.raises(LedgerMismatch) as caught:
        ledger.publish(record(4, **{key: value}))
    assert caught.value.what == f"step 4 was done again and {key} is {said}"
    assert (caught.value.data["step"], caught.value.data["key"]) == (4, key)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_digests_are_compared_only_where_both_were_taken(tmp_path: Path) -> None:
    with Ledger.open_writer(tmp_path) as ledger:
        ledger.publish(record(1))
        ledger.publish(record(2, digest="aa"))
        assert ledger.publish(record(1, digest="bb")) == "same"
        assert ledger.publish(record(2)) == "same"
        assert ledger.publish(record(2, digest="aa")) == "same"
        with pytest.raises(LedgerMismatch, match="digest is 'bb'; the ledger says 'aa'"):
            ledger.publish(record(2, digest="bb"))


def test_relaxed_compares_rows_only(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    with Ledger.open_writer(tmp_path, exact=False) as ledger:
        assert ledger.publish(record(2, loss=0.7, digest="x")) == "same"
        with pytest.raises(LedgerMismatch, match="row_checksum"):
            ledger.publish(record(3, row_checksum="5"))


# ---- what a crash leaves


@pytest.mark.parametrize("tail", [b"{", b'{"step":4,"lo', b"\0" * 50, b"\0\0\n", b"\xff\n", b"[]\n", b"\n"])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_torn_last_line_is_dropped(tmp_path: Path, tail: bytes, sealed: bool) -> None:
    """Half a line (killed in the write) or garbage (power cut): readers skip it, the next writer cuts it."""
    fill(tmp_path, 3, (3,) if sealed else ())
    with open(tmp_path / LIVE, "ab") as file:
        file.write(tail)
    assert steps(tmp_path) == [1, 2, 3]
    with Ledger.open_writer(tmp_path) as ledger:
        assert ledger.last_step == 3
        assert ledger.publish(record(4)) == "new"
    assert list(Ledger.read(tmp_path)) == [record(step) for step in range(1, 5)]


def test_every_cut_of_the_live_file_leaves_whole_lines(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    whole = (tmp_path / LIVE).read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == 10]
    for size in range(len(whole)):
        (tmp_path / LIVE).write_bytes(whole[:size])
        kept = sum(end <= size for end in ends)
        assert steps(tmp_path) == list(range(1, kept + 1))
        with Ledger.open_writer(tmp_path) as ledger:
            assert ledger.last_step == kept
    assert os.stat(tmp_path / LIVE).st_size == ends[-2]


def test_a_crash_in_the_middle_of_sealing(tmp_path: Path) -> None:
    """Renamed, and the new live file not yet made."""
    fill(tmp_path, 5, (5,))
    (tmp_path / LIVE).unlink()
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    fill(tmp_path, 6)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    fill(tmp_path, 9, (3, 6))
    live = (tmp_path / LIVE).read_bytes()
    (tmp_path / LIVE).write_bytes(b"#" + live[1:])
    with pytest.raises(RunFailed, match=r"live\.jsonl has a damaged line at byte 0"):
        steps(tmp_path)
    (tmp_path / LIVE).write_bytes(live)
    second = tmp_path / "00000004-00000006.jsonl"
    os.truncate(second, second.stat().st_size - 5)
    with pytest.raises(RunFailed, match=r"00000004-00000006\.jsonl ends at step 5"):
        steps(tmp_path)
    second.unlink()
    with pytest.raises(RunFailed, match=r"lacks step 4\n.*live\.jsonl goes on with step 7"):
        steps(tmp_path)
    assert steps(tmp_path, 7) == [7, 8, 9]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    limit = (tmp_path / LIVE).stat().st_size + 40
    code = f"""
import resource, signal
from pathlib import Path
from test_ledger import record
from god_ray.errors import RunFailed
from god_ray.monitor.ledger import Ledger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Ledger.open_writer(Path({str(tmp_path)!r})) as ledger:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(2):
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, hard))
        try:
            ledger.publish(record(4))
        except RunFailed as error:
            print(error.what)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    print(ledger.publish(record(4)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent, check=True
    )
    refused = f"the ledger line of step 4 could not be written under {tmp_path}"
    assert done.stdout.splitlines() == [refused, refused, "new"]
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_a_killed_writer_loses_nothing_that_it_published(tmp_path: Path) -> None:
    for _ in range(5):
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            with Ledger.open_writer(tmp_path) as ledger:
                while True:
                    ledger.publish(record(ledger.last_step + 1))
                    os.write(theirs, b"%d\n" % ledger.last_step)
                    if ledger.last_step % 7 == 0:
                        ledger.seal()
        os.close(theirs)
        said = os.read(ours, 1000)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(ours, 100_000):
            said += more
        os.close(ours)
        published = int(said[: said.rfind(b"\n")].split()[-1])
        found = steps(tmp_path)
        assert found == list(range(1, len(found) + 1))
        assert published <= len(found) <= published + 1


def test_it_is_light() -> None:
    code = "import sys, god_ray.monitor.ledger; print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_sync_works_while_another_thread_seals(tmp_path: Path) -> None:
    with Ledger.open_writer(tmp_path) as ledger:
        ledger.publish(record(1))
        ledger.sync()
        (tmp_path / LIVE).rename(tmp_path / "aside")  # between the rename and the new file
        ledger.sync()
