"""Progress: plain lines outside a terminal, one line that fits on a terminal (case 11.07)."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from god_ray.monitor import words
from god_ray.monitor.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def record(step: int, clock: Clock, steps_per_epoch: int = 100, **changes: Any) -> dict[str, Any]:
    made = {
        "step": step,
        "epoch": (step - 1) // steps_per_epoch,
        "step_in_epoch": (step - 1) % steps_per_epoch,
        "num_rows": 64,
        "loss": 1.5,
        "generation": 1,
        "num_workers": 2,
        "at": clock.now,
    }
    return made | changes


def run(num_steps: int, step_s: float, steps_per_epoch: int, **changes: Any) -> list[str]:
    clock, stream = Clock(), io.StringIO()
    with Progress(num_steps, steps_per_epoch, stream=stream, clock=clock) as progress:
        for step in range(1, num_steps + 1):
            clock.now += step_s
            progress.step(record(step, clock, steps_per_epoch, **changes))
    return stream.getvalue().splitlines()


def steps_in(lines: list[str]) -> list[int]:
    return [int(re.findall(r"step (\d+)/", line)[0]) for line in lines]


# ---- plain


def test_ten_thousand_steps_make_few_lines() -> None:
    """Without evaluations: the first, each ten seconds, the ends of epochs, the last."""
    lines = run(10_000, step_s=1 / 64, steps_per_epoch=10_000)
    assert steps_in(lines) == [*range(1, 10_000, 640), 10_000]
    lines = run(10_000, step_s=0.01, steps_per_epoch=2500)
    assert {2500, 5000, 7500, 10_000} <= set(steps_in(lines))
    assert len(lines) < 16


def test_tiny_epochs_do_not_flood_a_log() -> None:
    assert len(run(10_000, step_s=0.001, steps_per_epoch=5)) <= 12


def test_slow_steps_are_told_one_by_one() -> None:
    assert steps_in(run(5, step_s=11, steps_per_epoch=5)) == [1, 2, 3, 4, 5]


def test_what_a_line_says() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(500, 100, stream=stream, clock=clock)
    progress.step(record(1, clock))
    clock.now += 10
    progress.checkpoint(11, at=clock.now - 4)
    progress.step(record(11, clock, loss=0.123456))
    assert stream.getvalue().splitlines() == [
        "step 1/500  epoch 1/5  loss 1.5  2 workers",
        "step 11/500  epoch 1/5  loss 0.1235  6 rows/s  2 workers  ETA 8m09s  checkpoint 4s ago",
    ]


def test_rate_and_eta_are_measured_over_published_steps() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(1000, 1000, stream=stream, clock=clock)
    for step in range(1, 200):
        clock.now += 0.1
        progress.step(record(step, clock))
    assert "640 rows/s" in stream.getvalue().splitlines()[-1]
    assert "ETA 1m30s" in stream.getvalue().splitlines()[-1]


def test_the_pause_of_a_resize_is_not_counted_as_speed() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(1000, 1000, stream=stream, clock=clock)
    for step in range(1, 6):
        clock.now += 0.1
        progress.step(record(step, clock))
    clock.now += 60
    for step in range(6, 200):
        clock.now += 0.1
        progress.step(record(step, clock, generation=2, num_workers=1))
    last = stream.getvalue().splitlines()[-1]
    assert "640 rows/s  1 worker  ETA" in last


def test_every_evaluation_has_its_line() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(6, 2, stream=stream, clock=clock)
    for step in range(1, 7):
        evaluation = {"accuracy": 0.5 + step / 20, "loss": "NaN", "num_rows": 21} if step % 2 == 0 else None
        progress.step(record(step, clock, 2, eval=evaluation))
    assert [line for line in stream.getvalue().splitlines() if line.startswith("eval")] == [
        "eval  epoch 1/3  step 2  accuracy 0.6  loss nan  (21 rows)",
        "eval  epoch 2/3  step 4  accuracy 0.7  loss nan  (21 rows)",
        "eval  epoch 3/3  step 6  accuracy 0.8  loss nan  (21 rows)",
    ]


@pytest.mark.parametrize(("stored", "shown"), [("NaN", "nan"), ("Infinity", "inf"), (float("nan"), "nan")])
def test_a_loss_that_is_no_number_is_shown(stored: object, shown: str) -> None:
    assert f"loss {shown} " in run(1, 1, 1, loss=stored)[0]


def test_no_control_characters_whatever_a_metric_is_called() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress(2, 1, stream=stream, clock=clock) as progress:
        progress.step(record(1, clock, 1, eval={"bad\r\x1b[2Jname": 1.0, "[red]markup[/red]": 2}))
        progress.say("worker 2 died\x07\nand came back")
    text = stream.getvalue()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    assert "[red]markup[/red] 2" in text
    assert "worker 2 died  and came back\n" in text


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", term)
    clock, stream = Clock(), Terminal()
    with Progress(3, 3, stream=stream, clock=clock) as progress:
        for step in range(1, 4):
            progress.step(record(step, clock, 3))
    assert steps_in(stream.getvalue().splitlines()) == [1, 3]
    assert "\x1b" not in stream.getvalue()


def test_a_stream_that_is_gone_silences_it() -> None:
    """`god-ray train ... 2>&1 | head`: training goes on."""
    clock = Clock()
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w") as stream:
        progress = Progress(100, 1, stream=stream, clock=clock)
        for step in range(1, 101):
            clock.now += 20
            progress.step(record(step, clock, 1))
        progress.close()
        with pytest.raises(BrokenPipeError):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), theirs)
    closed = io.StringIO()
    closed.close()
    Progress(1, 1, stream=closed, clock=clock).say("nobody hears this")


def test_plain_progress_does_not_import_rich() -> None:
    code = (
        "import sys; from god_ray.monitor.progress import Progress\n"
        "with Progress(1, 1) as p: p.step({'step': 1})\n"
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "step 1/1\n")


# ---- on a terminal

SHOW = """
import sys, time
from test_progress import Clock, record
from god_ray.monitor.progress import Progress
clock = Clock()
with Progress(5000, 1000, clock=clock) as progress:
    progress._live.refresh()
    for step in range(1, 3001):
        clock.now += 0.01
        done = {"eval": {"accuracy": 0.5}} if step == 1000 else {}
        progress.step(record(step, clock, 1000, loss=0.123456, **done))
        if step == 100:
            progress.checkpoint(100)
        if step % 500 == 0:
            progress._live.refresh()
    print("something else", file=sys.stderr)
print("result")
"""


def on_a_terminal(columns: int) -> tuple[str, str]:
    """What a terminal of that width is sent, and stdout, which is a pipe."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", SHOW],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=Path(__file__).parent,
        env={**os.environ, "TERM": "xterm-256color"},
        text=True,
    )
    os.close(theirs)
    sent = b""
    while True:
        try:
            sent += os.read(ours, 65536)
        except OSError:  # how a pseudo-terminal says that it was closed
            break
    os.close(ours)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0, sent.decode()
    return sent.decode(), stdout


def rows_of(sent: str) -> list[str]:
    """Every row that was ever drawn."""
    without_colour = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", sent)
    return [row for row in re.split(r"[\r\n]+", without_colour) if row.strip()]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120])
def test_one_line_that_fits(columns: int) -> None:
    sent, stdout = on_a_terminal(columns)
    assert stdout == "result\n"
    assert "\x1b[" in sent
    rows = rows_of(sent)
    drawn = [row for row in rows if "/5000" in row]
    assert drawn
    assert max(map(len, drawn)) < columns, "would wrap"
    final = drawn[-1]
    if columns >= 40:
        assert re.match(r"step 3000/5000.* loss 0\.1235.* ETA 20s", final)
        assert any("waiting for the first step" in row for row in rows)
        assert any("something else" in row for row in rows)
    if columns >= 120:
        assert final == (
            "step 3000/5000  epoch 3/5  loss 0.1235  6400 rows/s  2 workers  ETA 20s  checkpoint 29s ago"
        )
    assert "accuracy" in " ".join(rows) or columns == 20


# ---- words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0.4, "0s"),
        (59.6, "1m00s"),
        (61, "1m01s"),
        (3600, "1h00m"),
        (90_061, "1d01h"),
        (float("inf"), "?"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize("width", range(1, 130))
def test_no_width_is_exceeded(width: int) -> None:
    facts = words.Facts(12_345_678, 100, 123_456.0, 123_456.0, 59.0)
    parts = words.fields({"step": 1_234_567, "epoch": 12, "loss": -1.2345e-12, "num_workers": 128}, facts)
    line = words.fit(parts, width)
    assert 0 < len(line) <= width
    if width >= 45:
        assert "ETA" in line


@pytest.mark.parametrize(
    ("rate", "text"), [(3.2, "3"), (9999, "9999"), (12_345, "12.3k"), (4.56e6, "4.56M"), (1.2e10, "12G")]
)
def test_rates(rate: float, text: str) -> None:
    facts = words.Facts(10, 1, rate, None, None)
    assert words.fields({"step": 1}, facts)["rate"] == f"{text} rows/s"
