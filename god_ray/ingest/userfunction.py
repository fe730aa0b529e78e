"""Where a user's function comes from, so that its failures name the line.

In: a callable (function, partial, object with __call__). Out: the `UserFile` whose `blame` wraps the call.
Must not call it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from god_ray.userfile import UserFile


def source_file(function: Callable[..., Any]) -> UserFile:
    """The file that defines it, as text even where that file is not on this machine."""
    while isinstance(function, functools.partial):
        function = function.func
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return UserFile(code.co_filename if code else function_name(function))


def function_name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
