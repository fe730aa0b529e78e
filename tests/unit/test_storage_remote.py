"""A bucket behind bad weather: what passes is tried again and counted, what stays is named; nothing torn."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flaky_s3 import Fault, Flaky, answer, calm, every, matching, only_key, reset, stall, trickle
from s3 import Endpoint, key_file

from god_ray.fileuri import without_secrets
from god_ray.storage import retrying
from god_ray.storage.remote import RemoteStore
from god_ray.storage.store import write_bytes
from god_ray.storage.tries import Patience

QUICK = Patience(num_tries=4, first_pause_s=0.01, longest_pause_s=0.02, stall_s=1, silence_s=20)
LARGE = 21 << 20
"""Bytes that pyarrow sends in three parts."""


@pytest.fixture
def flaky(s3_endpoint: Endpoint, s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    with Flaky(s3_endpoint.address) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        yield proxy


@pytest.fixture
def store(flaky: Flaky, s3: str) -> RemoteStore:
    return RemoteStore(f"{s3}/runs", QUICK)


@pytest.fixture
def behind(s3_endpoint: Endpoint, s3: str) -> Callable[[], dict[str, int]]:
    """What is in the bucket, asked past the proxy."""
    calm_store = RemoteStore(f"{s3}/runs?{s3_endpoint.query}")
    return calm_store.list


@pytest.mark.parametrize(
    "fault",
    [answer(500, "InternalError"), answer(503, "SlowDown"), answer(429, "TooManyRequests"), reset],
    ids=["500", "503", "429", "reset"],
)
def test_every_7th_request_fails_and_nobody_notices_but_the_log(
    store: RemoteStore,
    flaky: Flaky,
    behind: Callable[[], dict[str, int]],
    fault: Fault,
    caplog: pytest.LogCaptureFixture,
) -> None:
    flaky.plan = every(7, fault)
    names = [f"checkpoints/{n}" for n in range(12)]
    for name in names:
        write_bytes(store, name, name.encode())
    assert [store.read(name) for name in names] == [name.encode() for name in names]
    assert store.list() == behind() == {name: len(name) for name in sorted(names)}
    for name in names:
        store.remove(name)
    assert behind() == {}
    assert flaky.failed
    lines = [record.getMessage() for record in caplog.records if record.name == retrying.__name__]
    assert 0 < len(lines) == store.num_retries
    assert f"(retry {len(lines)} of this store)" in lines[-1]
    assert all(f"{store.uri}: " in line and "try 1 of 4 failed, again in" in line for line in lines)


def test_what_does_not_pass_ends_with_the_number_of_tries(store: RemoteStore, flaky: Flaky) -> None:
    flaky.plan = every(1, answer(503, "SlowDown"))
    with pytest.raises(OSError) as caught:
        write_bytes(store, "checkpoints/step-00000100/manifest.json", b"{}")
    said = str(caught.value)
    assert said.startswith(f"{store.uri}: write of checkpoints/step-00000100/manifest.json: ")
    assert said.endswith("tried 4 times")
    assert "SLOW_DOWN" in said
    assert len(flaky.seen) == 4


@pytest.mark.parametrize(
    ("request_line", "fault"),
    [
        (r"POST .*\?uploads", answer(500, "InternalError")),
        (r"partNumber=3", answer(500, "InternalError")),
        (r"partNumber=3", reset),
        (r"POST .*\?uploadId", answer(500, "InternalError")),
    ],
    ids=["begin", "part", "part is reset", "end"],
)
def test_an_upload_that_breaks_off_leaves_what_was_there(
    s3: str,
    flaky: Flaky,
    behind: Callable[[], dict[str, int]],
    request_line: str,
    fault: Fault,
) -> None:
    store = RemoteStore(f"{s3}/runs", Patience(num_tries=2, first_pause_s=0.01, stall_s=10))
    write_bytes(store, "x", b"before")
    flaky.plan = matching(request_line, fault)
    with pytest.raises(OSError, match=r"write of x.*tried 2 times"):
        write_bytes(store, "x", b"n" * LARGE)
    assert behind() == {"x": 6}
    flaky.plan = matching(request_line, fault, times=1)
    write_bytes(store, "x", b"n" * LARGE)
    assert behind() == {"x": LARGE}


def test_a_local_file_that_cannot_be_read_is_no_object(
    store: RemoteStore, behind: Callable[[], dict[str, int]]
) -> None:
    """pyarrow would make one of what was sent so far, when the stream is collected."""
    write_bytes(store, "x", b"before")
    with pytest.raises(OSError, match="write of x: Input/output error"):
        store.write("x", lambda path: path.symlink_to("/proc/self/mem"))
    gc.collect()
    assert behind() == {"x": 6}


@pytest.mark.parametrize(
    ("request_line", "verb"),
    [
        (r"partNumber=3", lambda store: write_bytes(store, "x", b"x" * LARGE)),
        (r"POST .*\?uploadId", lambda store: write_bytes(store, "x", b"x")),
        (r"list-type", lambda store: store.list("a")),
        (r"GET .*/y", lambda store: store.read("y")),
    ],
    ids=["write", "close", "list", "read"],
)
def test_a_stalled_connection_is_named(
    s3: str, flaky: Flaky, request_line: str, verb: Callable[[RemoteStore], object]
) -> None:
    store = RemoteStore(f"{s3}/runs", Patience(num_tries=2, first_pause_s=0.01, stall_s=1))
    write_bytes(store, "y", b"y")
    flaky.plan = matching(request_line, stall)
    with pytest.raises(
        OSError, match=r"s3://.*/runs: (write|list|read) of \w+: no answer within 1 s.*tried 2 times"
    ):
        verb(store)
    flaky.plan = calm
    verb(store)


def test_an_answer_that_never_ends_is_left_behind(s3: str, flaky: Flaky) -> None:
    """Each byte comes in time, so the connection never stalls: the deadline is our own."""
    store = RemoteStore(f"{s3}/runs", Patience(num_tries=2, first_pause_s=0.01, silence_s=0.5))
    flaky.plan = matching("list-type", trickle)
    with pytest.raises(OSError, match=r"list of all: no answer within 0.5 s, tried 2 times"):
        store.list()


@pytest.mark.parametrize(
    ("status", "code"), [(400, "ExpiredToken"), (403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch")]
)
def test_credentials_that_were_rewritten_are_read_anew(
    flaky: Flaky, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    rewrite = key_file(tmp_path, monkeypatch)
    valid = [rewrite("FIRST")]
    flaky.plan = only_key(lambda: valid[-1], answer(status, code))
    store = RemoteStore(f"{s3}/runs", QUICK)
    write_bytes(store, "x", b"one")
    valid.append(rewrite("SECOND"))
    assert store.read("x") == b"one"
    valid.append(rewrite("THIRD"))
    assert store.list() == {"x": 3}
    valid.append(rewrite("FOURTH"))
    write_bytes(store, "x", b"two")
    valid.append(rewrite("FIFTH"))
    store.remove("x")
    assert store.num_retries == 4
    assert flaky.seen[-1].access_key == "FIFTH"


def test_a_refusal_that_stays_is_named(store: RemoteStore, flaky: Flaky) -> None:
    flaky.plan = every(1, answer(403, "AccessDenied"))
    for verb, said in (
        (lambda: store.read("x"), "read of x"),
        (lambda: write_bytes(store, "x", b""), "write of x"),
        (lambda: store.list(), "list of all"),
        (lambda: store.remove("x"), "remove of x"),
    ):
        flaky.seen.clear()
        with pytest.raises(OSError, match=f"{said}: .*ACCESS_DENIED.*, tried 3 times"):
            verb()
        assert len(flaky.seen) == 3


def test_a_bucket_that_is_not_there_is_named_at_once(store: RemoteStore, flaky: Flaky) -> None:
    missing = RemoteStore("s3://no-such-bucket/runs", QUICK)
    with pytest.raises(OSError, match=r"no-such-bucket/runs: write of x: .*NO_SUCH_BUCKET"):
        write_bytes(missing, "x", b"")
    assert (missing.num_retries, len(flaky.seen)) == (0, 1)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nope://x/y", "Unrecognized filesystem type"),
        ("s3:///runs", "Missing bucket name"),
        ("s3://KEY:TOPSECRET@bucket/50%?region=x", "Cannot parse URI"),
        ("s3://KEY:TOPSECRET@bucket/runs?reegion=x", "Unexpected query parameter"),
    ],
)
def test_a_wrong_uri_is_an_error_of_the_first_verb_without_secrets(place: str, said: str) -> None:
    store = RemoteStore(place, QUICK)
    with pytest.raises(OSError, match=said) as caught:
        store.list()
    assert store.uri in str(caught.value)
    assert "TOPSECRET" not in str(caught.value) + store.uri
    assert store.num_retries == 0


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("s3://b", "s3://b"),
        ("s3://b/runs/?region=x", "s3://b/runs?region=x"),
        ("s3://K:S@b/a@b:c", "s3://b/a@b:c"),
        (
            "abfs://container@account.dfs.core.windows.net/runs",
            "abfs://container@account.dfs.core.windows.net/runs",
        ),
        ("abfs://:S@account/container", "abfs://account/container"),
        ("gs://bucket/runs", "gs://bucket/runs"),
        ("abfs://c@a/runs?tenant_id=T&client_secret=S", "abfs://c@a/runs?tenant_id=T"),
        ("abfs://c@a/runs?sig=S", "abfs://c@a/runs"),
    ],
)
def test_a_place_is_shown_without_credentials(place: str, said: str) -> None:
    assert without_secrets(place) == said


def test_a_uri_may_carry_what_the_environment_does_not(
    s3_endpoint: Endpoint, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in s3_endpoint.environment():
        monkeypatch.delenv(name)
    bucket = s3.removeprefix("s3://")
    store = RemoteStore(f"s3://KEY:TOPSECRET@{bucket}/my runs/?{s3_endpoint.query}", QUICK)
    assert store.uri == f"s3://{bucket}/my runs?{s3_endpoint.query}"
    write_bytes(store, "x", b"x")
    assert store.list() == {"x": 1}


def test_a_full_temporary_folder_is_named(store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(OSError, match=r"write of x: temporary folder: .*/proc/nowhere"):
        write_bytes(store, "x", b"")


def test_pauses_double_up_to_a_limit_and_outlast_twenty_seconds() -> None:
    patience = Patience()
    longest = [0.5, 1, 2, 4, 8, 8, 8]
    pauses = [patience.pause_s(n) for n in range(1, patience.num_tries)]
    assert len(pauses) == len(longest)
    assert all(0.75 * limit <= pause <= limit for pause, limit in zip(pauses, longest))
    assert 0.75 * sum(longest) > 20


def test_training_draws_the_same_numbers_whatever_is_tried_again() -> None:
    import random

    random.seed(1)
    expected = random.random()
    random.seed(1)
    Patience().pause_s(1)
    assert random.random() == expected
