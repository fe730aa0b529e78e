"""A connection to the job server of a Ray cluster, whether it asks for a token or not.

In: an address. Out: Ray's own `JobSubmissionClient`. Sends the token that Ray keeps for this user, if there
is one: a cluster without tokens ignores it. In clear to another machine it goes only if a variable names it:
that file is of this machine's own cluster, and everybody on the way would read it. A cluster that does not
answer, or refuses, shows as a UserError that says what was tried.
"""

from __future__ import annotations

import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from god_ray.errors import UserError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

PATIENCE_S = 10.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@contextmanager
def reach(address: str) -> Iterator[JobSubmissionClient]:
    """The client of the cluster at `address` ("http://host:port"). Raises UserError."""
    address = address.rstrip("/")
    target = urlsplit(address)
    if target.scheme not in ("http", "https") or not target.hostname:
        raise UserError(
            f"{address!r} is not the address of a job server.",
            "Ray serves its Job API over HTTP, beside its dashboard.",
            "give --address http://HOST:8265",
        )
    with _environment(target.hostname):
        headers = _headers(target.scheme == "https" or target.hostname in LOOPBACK)
        _require_answer(address, headers)
        from ray.job_submission import JobSubmissionClient

        for name in ("dashboard_sdk", "job.sdk"):
            logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.WARNING)
        yield JobSubmissionClient(address, headers=headers)


@contextmanager
def _environment(host: str) -> Iterator[None]:
    """The address that was asked for, and no proxy to this machine: Ray lets variables overrule both."""
    before = dict(os.environ)
    os.environ.pop("RAY_API_SERVER_ADDRESS", None)
    os.environ.pop("RAY_ADDRESS", None)
    if host in LOOPBACK:
        for name in ("no_proxy", "NO_PROXY"):
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), host]))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _headers(private: bool) -> dict[str, str]:
    """`private`: what is sent can be read by nobody on the way."""
    token = _token()
    if not token:
        return {}
    # An empty one where the token is kept back: Ray's client (RAY_AUTH_MODE=token) would else add it.
    return {"Authorization": f"Bearer {token}" if private or _is_named() else ""}


def _is_named() -> bool:
    """Whether the user named a token themselves, for whatever cluster they name."""
    return bool(os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"))


def _token() -> str | None:
    """Where Ray looks for it, in Ray's order."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    try:
        return _token_file().read_text().strip() or None
    except OSError:
        return None


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def _require_answer(address: str, headers: dict[str, str]) -> None:
    """One request with a limit of its own: Ray's client would wait for ever, and says less."""
    url = f"{address}/api/version"
    request = urllib.request.Request(url)
    for name, value in headers.items():
        request.add_unredirected_header(name, value)  # to that address, and wherever it points to, not
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S):
            return
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise _refused(address, any(headers.values())) from error
        raise UserError(
            f"{address} answers, but not as a Ray job server: HTTP {error.code}.",
            f"Tried GET {url}.",
            "give the address of the cluster's dashboard, for example --address http://127.0.0.1:8265",
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"no Ray cluster answers at {address}: {getattr(error, 'reason', None) or error}.",
            f"Tried GET {url} for up to {PATIENCE_S:g} s.",
            "start one (ray start --head), bring its port here (ray dashboard CLUSTER.yaml, or kubectl "
            "port-forward), or give --address.",
        ) from error


def _refused(address: str, sent: bool) -> UserError:
    if not sent and not _is_named() and _token():
        return UserError(
            f"the cluster at {address} asks for a token, and none was sent.",
            f"The one in {_token_file()} goes only to this machine or over https: here all could read it.",
            "set RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the cluster's token (on its head: ray "
            "get-auth-token) to send it all the same, or bring its port here (kubectl port-forward, ssh -L).",
        )
    where = "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else str(_token_file())
    return UserError(
        f"the cluster at {address} {'refused the token' if sent else 'asks for a token, and there is none'}.",
        f"{'It was taken from' if sent else 'Looked in RAY_AUTH_TOKEN and'} {where}.",
        f"put the cluster's token (on its head: ray get-auth-token) into {_token_file()} or RAY_AUTH_TOKEN.",
    )
