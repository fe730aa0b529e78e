"""pyarrow's file systems: opening one by URI, and what their errors mean.

In: a URI; an error. Out: an open file system and the path of the root in it; whether another try can help.
Everything about pyarrow's and S3's wording is here. Must not know the verbs. What cannot be opened is an
OSError without credentials in its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pyarrow import fs

from god_ray.fileuri import without_secrets
from god_ray.storage.tries import Patience


class Outlook(Enum):
    PASSING = "another try may help"
    REFUSED = "another try with credentials read anew may help"
    HOPELESS = "no other try helps"


REFUSED = re.compile(
    # A HEAD has no body: there, 400 is all that S3 says of an expired token.
    r"AWS Error (ACCESS_DENIED|\w*(TOKEN|KEY_ID|SIGNATURE|SKEWED|EXPIRED)\w*|UNKNOWN \(HTTP status 40[013]\))"
)
HOPELESS = re.compile(r"AWS Error (NO_SUCH_|RESOURCE_NOT_FOUND|UNKNOWN \(HTTP status (404|405|409|412)\))")


@dataclass(frozen=True)
class Opened:
    filesystem: Any
    root: str


def connect(place: str) -> tuple[Any, str]:
    """pyarrow's file system as it opens it, and the path in it. Credentials are read here."""
    try:
        filesystem, path = fs.FileSystem.from_uri(place.replace(" ", "%20"))
    except (ValueError, NotImplementedError) as error:
        said = str(error).replace(place.replace(" ", "%20"), without_secrets(place))
        raise UnusablePlace(f"pyarrow cannot open it: {said}") from error
    return filesystem, path.rstrip("/")


def open_filesystem(place: str, patience: Patience) -> Opened:
    """As a store needs it."""
    filesystem, root = connect(place)
    if isinstance(filesystem, fs.S3FileSystem):
        filesystem = _impatient(filesystem, patience)
    return Opened(filesystem, root)


class UnusablePlace(OSError):
    """The URI itself is wrong."""


def _impatient(filesystem: fs.S3FileSystem, patience: Patience) -> fs.S3FileSystem:
    """The same with one try for a request, so that tries are counted and shown in one place: ours.

    `background_writes`: without them pyarrow forgets a part that failed, and completes the rest as an object.
    Without `allow_delayed_open` an upload that cannot begin has no stream whose end would be an object.
    """
    _, (options,) = filesystem.__reduce__()  # all that it understood of the URI and the environment
    options.update(
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        request_timeout=patience.stall_s,
        connect_timeout=patience.stall_s,
        background_writes=True,
        allow_delayed_open=False,
        allow_bucket_creation=False,
    )
    return fs.S3FileSystem(**options)


def outlook(error: OSError) -> Outlook:
    if isinstance(error, UnusablePlace | FileNotFoundError) or (
        error.errno is not None  # this machine's own file system said so
    ):
        return Outlook.HOPELESS
    if HOPELESS.search(str(error)):
        return Outlook.HOPELESS
    return Outlook.REFUSED if REFUSED.search(str(error)) else Outlook.PASSING


def cause(error: OSError, patience: Patience) -> str:
    """In one line."""
    said = error.strerror or " ".join(str(error).split())
    if "curlCode: 28" in said:
        return f"no answer within {patience.stall_s:g} s ({said})"
    return said
