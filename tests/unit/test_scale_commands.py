"""`god-ray scale` while another command is still to be obeyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from god_ray.cli.scale import scale
from god_ray.errors import UserError
from god_ray.loop.request import Request
from god_ray.runtime import control
from god_ray.runtime.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    record = {"state": "RUNNING", "spec": {"lanes": 4}, "attempts": [{"workers": 2}]}
    return RunFolder.create(tmp_path, "a", "", record)


def test_the_size_that_there_is_takes_an_earlier_wish_back(run: RunFolder, tmp_path: Path) -> None:
    with run.drive():
        scale("a", 2, tmp_path)
        assert control.pending(run.control) is None
        scale("a", 4, tmp_path)
        scale("a", 2, tmp_path)
    assert control.pending(run.control) == Request("resize", 2)


def test_a_stop_is_not_taken_back(run: RunFolder, tmp_path: Path) -> None:
    control.send(run.control, Request("stop"))
    with run.drive(), pytest.raises(UserError, match="was asked to stop"):
        scale("a", 3, tmp_path)
    assert control.pending(run.control) == Request("stop")
