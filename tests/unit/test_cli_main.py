"""The frame of the command line: what is imported, where text goes, which exit code comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from god_ray import cli, errors
from god_ray.cli import exits

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "god_ray", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def every_error() -> list[type[errors.GodRayError]]:
    found = [errors.GodRayError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return found


def test_help_groups_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for word in ("Look", "Start", "init", "exit-code", "--version"):
        assert word in done.stdout


def test_the_command_line_loads_nothing_heavy() -> None:
    """The time budget of `--help`, checked by its cause: what it would load."""
    code = (
        "import sys, god_ray.cli\n"
        "god_ray.cli.main(['--help']); god_ray.cli.main(['exit-code'])\n"
        "print(*sorted(m for m in sys.modules if '.' not in m), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "typer" in loaded
    assert not loaded & {"torch", "ray", "pyarrow", "numpy", "ruamel", "pandas", "sklearn"}


def test_version() -> None:
    import god_ray

    assert run("--version").stdout == f"{god_ray.__version__}\n"


@pytest.mark.parametrize("arguments", [["int"], ["--nothing"], ["exit-code", "x"], ["exit-code", "1", "2"]])
def test_a_wrong_command_line_is_a_usage_error_on_stderr(arguments, capsys) -> None:
    assert cli.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Error" in shown.err


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def app(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    return cli.main([])


@pytest.mark.parametrize("kind", [kind for kind in every_error() if not issubclass(kind, errors.Bug)])
def test_a_foreseen_error_is_three_sentences_and_its_code(kind, monkeypatch, capsys) -> None:
    code = raising(kind("lanes = 0", "A run needs a lane.", "set lanes: 4"), monkeypatch)
    shown = capsys.readouterr()
    assert code == kind.exit_code
    assert shown.out == ""
    assert shown.err == "lanes = 0\n  A run needs a lane.\n  Fix: set lanes: 4\n"


@pytest.mark.parametrize("error", [RuntimeError("odd"), errors.Bug("odd"), OSError("odd")])
def test_an_unforeseen_error_is_our_bug_with_a_traceback(error, monkeypatch, capsys) -> None:
    code = raising(error, monkeypatch)
    shown = capsys.readouterr()
    assert code == 1
    assert shown.out == ""
    assert "Traceback (most recent call last)" in shown.err
    assert "this is a bug in god_ray: odd" in shown.err


@pytest.mark.parametrize(
    ("ending", "code"), [(KeyboardInterrupt(), 130), (SystemExit(103), 103), (SystemExit(), 0)]
)
def test_other_endings_keep_their_code(ending, code, monkeypatch) -> None:
    assert raising(ending, monkeypatch) == code


def test_an_early_ctrl_c_is_said_in_one_line(monkeypatch, capsys) -> None:
    assert raising(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_ctrl_c_inside_a_command_is_said_in_one_line(monkeypatch, capsys) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", interrupted)
    assert cli.main(["exit-code", "--json"]) == 130
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "interrupted\n")


@pytest.mark.parametrize("arguments", [["exit-code"], ["exit-code", "100"], ["--help"], ["exit-code", "7"]])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_nobody_reading_on_is_a_quiet_end(arguments: list[str], stream: str) -> None:
    """`| head -1`: without the race, as nobody reads from the beginning."""
    there, away = os.pipe()
    os.close(there)
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    command = [sys.executable, "-m", "god_ray", *arguments]
    streams = {stream: away, other: subprocess.PIPE}
    done = subprocess.run(command, text=True, check=False, **streams)  # type: ignore[call-overload]
    os.close(away)
    written = "stderr" if arguments[-1] == "7" else "stdout"
    if written == stream:
        assert (done.returncode, getattr(done, other)) == (141, "")
    else:
        assert done.returncode in (0, 2)


def test_a_pipe_that_broke_elsewhere_is_our_bug() -> None:
    code = (
        "import sys, json\nfrom god_ray import cli\n"
        "def broken(*_):\n    raise BrokenPipeError(32, 'not an output')\n"
        "json.dumps = broken\nsys.exit(cli.main(['exit-code', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "this is a bug in god_ray" in done.stderr


def test_ledger_says_that_its_json_is_lines() -> None:
    assert "one object a line" in " ".join(run("ledger", "--help").stdout.replace("│", " ").split())


def test_every_error_ends_in_a_code_that_has_a_page() -> None:
    assert {kind.exit_code for kind in every_error()} <= set(exits.BY_CODE)


def test_the_codes_are_the_promised_ones() -> None:
    named = {item.code: item.name for item in exits.EXITS}
    assert named == {
        0: "succeeded",
        1: "bug",
        2: "usage",
        100: "failed",
        101: "not finished",
        102: "not found",
        103: "stopped",
        130: "interrupted",
        141: "unread",
    }
    assert all(item.meaning.endswith(".") and len(item.page.strip()) > 80 for item in exits.EXITS)


def test_the_generated_page_is_current() -> None:
    renew = (
        "python -c \"from god_ray.cli.exits import markdown as m; print(m(), end='')\" > docs/exit-codes.md"
    )
    assert (ROOT / "docs" / "exit-codes.md").read_text() == exits.markdown(), f"renew it: {renew}"


def test_exit_code_prints_the_table(capsys) -> None:
    assert cli.main(["exit-code"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines] == [0, 1, 2, 100, 101, 102, 103, 130, 141]


@pytest.mark.parametrize("item", exits.EXITS, ids=lambda item: item.name)
def test_exit_code_prints_a_page(item, capsys) -> None:
    assert cli.main(["exit-code", str(item.code)]) == 0
    assert item.page.strip() in capsys.readouterr().out


def test_exit_code_as_json_has_stable_keys(capsys) -> None:
    assert cli.main(["exit-code", "101", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert list(page) == ["code", "name", "meaning", "page"]
    assert (page["code"], page["name"]) == (101, "not finished")
    assert cli.main(["exit-code", "--json"]) == 0
    assert [page["code"] for page in json.loads(capsys.readouterr().out)] == list(exits.BY_CODE)


def test_an_unknown_exit_code_is_a_usage_error(capsys) -> None:
    assert cli.main(["exit-code", "7"]) == 2
    assert "7 is not an exit code" in capsys.readouterr().err
