"""Relative paths of a spec, made absolute once, when it is loaded.

In: a `RunSpec` as written and the folder of its file. Out: the same with absolute paths, so that no later
reader has to know where the file was. Looks at no file: links stay, and with them `..`. A `file:` URI becomes
a path, another URI (`s3://...`) stays as it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from god_ray.fileuri import plain
from god_ray.spec.run import RunSpec


def absolute(text: str, base: Path) -> str:
    """`text` as seen from `base`; `~` is the user's home, `file.py:function` keeps its function."""
    text = plain(text)
    return text if "://" in text else str(base / os.path.expanduser(text))


def is_function(text: str) -> bool:
    """Whether it is of the form `file.py:function`."""
    file, colon, name = text.rpartition(":")
    return bool(colon) and file.endswith(".py") and name.isidentifier()


def resolved(spec: RunSpec, base: Path) -> RunSpec:
    """Paths against the spec's folder, `storage` against the current one."""

    def one(text: str | None) -> str | None:
        return None if text is None else absolute(text, base)

    def many(texts: list[str] | None) -> list[str] | None:
        return None if texts is None else [absolute(text, base) for text in texts]

    data, start = spec.data, spec.init_from
    data = data.model_copy(
        update={"train": many(data.train), "eval": many(data.eval), "preprocess": one(data.preprocess)}
    )
    return spec.model_copy(
        update={
            "recipe": one(spec.recipe),
            "data": data,
            "init_from": start and start.model_copy(update={"path": one(start.path)}),
            "storage": absolute(spec.storage, Path.cwd()),
        }
    )
