"""The token that Ray keeps for this user goes where nobody on the way reads it, or where it is meant to."""

from __future__ import annotations

import email.message
import io
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from god_ray.errors import UserError
from god_ray.jobs.reach import reach

FAR = "http://cluster.example:8265"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str | None]:
    """What each request carried; the cluster refuses them all."""
    home = tmp_path / "home"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("kept")
    (tmp_path / "named").write_text("named")
    monkeypatch.setenv("HOME", str(home))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    seen: list[str | None] = []

    def refuse(request: urllib.request.Request, **_: Any) -> None:
        seen.append(request.get_header("Authorization") or None)
        raise urllib.error.HTTPError(request.full_url, 401, "no", email.message.Message(), io.BytesIO())

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return seen


def refused(address: str) -> UserError:
    with pytest.raises(UserError) as caught, reach(address):
        pass
    return caught.value


@pytest.mark.parametrize(
    ("address", "token"),
    [
        ("http://127.0.0.1:8265", "Bearer kept"),
        ("http://localhost:8265", "Bearer kept"),
        ("http://[::1]:8265", "Bearer kept"),
        ("https://cluster.example", "Bearer kept"),
        (FAR, None),
        ("http://10.0.0.7:8265", None),
        ("http://127.0.0.1.example:8265", None),
        ("http://localhost@cluster.example:8265", None),
    ],
)
def test_the_kept_token_is_not_sent_in_clear(sent: list[str | None], address: str, token: str | None) -> None:
    refused(address)
    assert sent == [token]


@pytest.mark.parametrize(("name", "token"), [("RAY_AUTH_TOKEN", "mine"), ("RAY_AUTH_TOKEN_PATH", "named")])
def test_a_token_that_the_user_named_is_sent(
    sent: list[str | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, token: str
) -> None:
    monkeypatch.setenv(name, str(tmp_path / "named") if name.endswith("PATH") else "mine")
    assert "refused the token" in refused(FAR).what
    assert sent == [f"Bearer {token}"]


def test_ray_does_not_add_the_kept_token_either(
    sent: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = pytest.importorskip("ray.job_submission")
    given: list[dict[str, str]] = []
    monkeypatch.setattr(sdk, "JobSubmissionClient", lambda address, headers: given.append(headers))
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO())
    with reach(FAR), reach("http://127.0.0.1:8265"):
        pass
    assert given == [{"Authorization": ""}, {"Authorization": "Bearer kept"}]


def test_what_to_set_is_said_when_the_cluster_asks(sent: list[str | None]) -> None:
    error = refused(FAR)
    assert error.what == f"the cluster at {FAR} asks for a token, and none was sent."
    assert "goes only to this machine or over https" in error.why
    assert error.fix.startswith("set RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH)")
    assert sent == [None]
