"""Whole runs over a bucket that fails: what passes costs time and lines in the log, what stays ends the run.

Cases 4.11, 4.12 and 4.13. Between the run and a real S3 endpoint stands a proxy that fails some requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flaky_s3 import Flaky, answer, calm, every, matching, only_key, reset, stall
from s3 import Endpoint, key_file
from small_runs import STEPS, project, trained

from god_ray import api
from god_ray.errors import GodRayError
from god_ray.monitor.ledger import Ledger
from god_ray.runtime.run_folder import RunFolder
from god_ray.storage.remote import RemoteStore
from god_ray.storage.tries import Patience


@pytest.fixture
def flaky(s3_endpoint: Endpoint, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    """The endpoint that AWS_* leads to, with a storage that is quick to try again and to give up."""
    quick = Patience(first_pause_s=0.01, longest_pause_s=0.05, stall_s=1.0, silence_s=3.0, num_tries=4)
    monkeypatch.setattr(RemoteStore.__init__, "__defaults__", (quick,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Flaky(s3_endpoint.address) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        yield proxy


def bits(run: RunFolder) -> list[tuple[Any, ...]]:
    return [(record["step"], record["loss"], record.get("digest")) for record in Ledger.read(run.ledger)]


@pytest.mark.parametrize("fault", [answer(500, "InternalError"), answer(503, "SlowDown"), reset])
def test_what_passes(
    flaky: Flaky, s3: str, tmp_path: Path, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Every seventh request fails; the run has the bits of one on disk, each failure its line."""
    spec = project(tmp_path / "p")
    undisturbed = trained(spec, tmp_path / "runs", "demo")
    flaky.plan = every(7, fault)
    with caplog.at_level(logging.WARNING, "god_ray.storage"):
        result = api.train(spec, debug=True, name="demo", storage=s3)
        flaky.plan = calm
    assert result.state == "SUCCEEDED", result.failure
    run = RunFolder.find("demo", s3)
    assert bits(run) == bits(undisturbed)
    assert len(flaky.failed) > 5
    lines = [r.getMessage() for r in caplog.records if "try 1 of 4 failed, again in" in r.getMessage()]
    assert len(lines) > 5
    again = [name for name in run.store.list("checkpoints") if name.endswith("manifest.json")]
    assert again[-1] == f"checkpoints/step-{STEPS:08d}/manifest.json"


def test_credentials_that_are_replaced(
    flaky: Flaky, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some requests only another key is valid, which lies in the rewritten file."""
    write = key_file(tmp_path, monkeypatch)

    def valid() -> str:
        if len(flaky.seen) == 60:
            write("second")
        return "first" if len(flaky.seen) < 60 else "second"

    write("first")
    flaky.plan = only_key(valid, answer(400, "ExpiredToken"))
    result = api.train(project(tmp_path / "p"), debug=True, name="demo", storage=s3)
    assert (result.state, result.step) == ("SUCCEEDED", STEPS)
    assert {request.access_key for request in flaky.seen} == {"first", "second"}


STAYS = [
    pytest.param(matching("PUT .*step-00000012", answer(403, "AccessDenied")), "ACCESS_DENIED", id="403"),
    pytest.param(matching("PUT .*step-00000012.*model", stall), "no answer within", id="stall"),
    pytest.param(matching("PUT .*step-00000012.*manifest", answer(507, "QuotaExceeded")), "507", id="quota"),
]


@pytest.mark.parametrize(("plan", "said"), STAYS)
def test_what_stays_ends_the_run_with_the_checkpoint_before(
    flaky: Flaky, s3: str, tmp_path: Path, plan: Any, said: str
) -> None:
    spec = project(tmp_path / "p", checkpoint={"every_steps": 4, "keep": 1})
    undisturbed = trained(spec, tmp_path / "runs", "demo")
    flaky.plan = plan
    result = api.train(spec, debug=True, name="demo", storage=s3)
    assert result.state == "FAILED"
    assert "step-00000012 could not be written" in result.reason
    assert said in str(result.failure)
    flaky.plan = calm
    run = RunFolder.find("demo", s3)
    assert [n for n in run.store.list("checkpoints") if "manifest" in n] == [
        "checkpoints/step-00000008/manifest.json"
    ], "nothing older is pruned before something newer is there"
    assert api.resume("demo", s3, debug=True).state == "SUCCEEDED"
    assert bits(RunFolder.find("demo", s3)) == bits(undisturbed)


def test_a_bucket_that_is_gone_for_good_is_told_and_the_run_can_go_on_later(
    flaky: Flaky, s3: str, tmp_path: Path
) -> None:
    """Not even the final state can be written down: the command says it."""
    spec = project(tmp_path / "p")
    undisturbed = trained(spec, tmp_path / "runs", "demo")
    flaky.plan = lambda request: answer(403, "AccessDenied") if gone(flaky) else None
    with pytest.raises(GodRayError, match=r"state could not be written either") as caught:
        api.train(spec, debug=True, name="demo", storage=s3)
    assert "ACCESS_DENIED" in str(caught.value)
    flaky.plan = calm
    assert api.resume("demo", s3, debug=True).state == "SUCCEEDED"
    assert bits(RunFolder.find("demo", s3)) == bits(undisturbed)


def gone(flaky: Flaky) -> bool:
    """From the third checkpoint on."""
    return any("step-00000012" in request.line for request in flaky.seen)
