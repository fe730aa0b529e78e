"""What a URI says before anybody opens it: the path that a `file:` URI is, and which part of one is secret.

In: a path or a URI as somebody wrote it. Out: a plain path for a `file:` URI, everything else as it was; the
same without credentials. Looks at no file. A `file:` URI that names another machine is a ValueError.
"""

from __future__ import annotations

from urllib.parse import unquote

SECRET_OPTIONS = ("client_secret", "sig")
"""Those of Azure; pyarrow takes no secret as an option of s3 and gs."""


def plain(text: str) -> str:
    """`file:///a%20b` is `/a b`; a path may hold a bare `%`, `?` or `#`."""
    if not text.startswith("file:"):
        return text
    rest = text.removeprefix("file:")
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise ValueError(f"names the machine {host!r}: between file:// and the path there is nothing")
        rest = slash + path
    return unquote(rest)


def without_secrets(place: str) -> str:
    """The URI without user, password and secret options; its other options stay."""
    scheme, _, rest = place.partition("://")
    authority, slash, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    container = "" if scheme == "s3" else user.partition(":")[0]  # of abfs://container@account
    path, mark, options = path.partition("?")
    shown = "&".join(o for o in options.split("&") if o.partition("=")[0] not in SECRET_OPTIONS)
    return f"{scheme}://{container and container + '@'}{host}{slash}{path}".rstrip("/") + (
        shown and mark + shown
    )


def has_secrets(text: str) -> bool:
    if "://" not in text or text.startswith("file:"):
        return False
    path, mark, options = text.partition("?")
    return without_secrets(text) != path.rstrip("/") + (options and mark + options)
