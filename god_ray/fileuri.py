"""What a `file:` URI names on this machine.

In: a path or a URI as somebody wrote it. Out: a plain path for a `file:` URI, everything else as it was.
Looks at no file. A URI that names another machine is a ValueError.
"""

from __future__ import annotations

from urllib.parse import unquote


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
