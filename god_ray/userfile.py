"""A Python file of the user's: executing it by path, finding a function in it, blaming the right line.

In: a path and a name. Out: the function. The file runs under a stable synthetic module name with its folder
importable, and is pickled by value once Ray is there, so workers need no copy of it. Knows nothing of recipes
or Ray's API. Failures are `RecipeError`s that name the user's file and line.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import traceback
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from god_ray.errors import RecipeError, UserError

# Modules that came out of users' folders, by folder: the file itself and the neighbours it imported.
_loaded: dict[str, dict[str, ModuleType]] = {}

# What may lie below a user's folder (a home, a checkout) without being theirs: Python, and god_ray itself.
_INSTALLED = (sys.prefix + os.sep, sys.base_prefix + os.sep, os.path.dirname(__file__) + os.sep)

_MOST_KEYS = 20


@dataclass(frozen=True)
class UserFile:
    """Where a user's function came from; travels with it."""

    path: str

    @classmethod
    def load(cls, path: str, name: str) -> tuple[UserFile, Callable[..., Any]]:
        """Execute the file (again only if it changed) and take the function from it."""
        file = cls(os.path.abspath(os.path.expanduser(path)))
        module = file._module()
        found = getattr(module, name, None)
        if callable(found):
            return file, found
        raise RecipeError(
            f"{file.path} has no function {name!r}"
            if found is None
            else f"{file.path}: {name} is not a function",
            file._offer(module),
            _did_you_mean(name, _functions(module)) or f"define it: def {name}(...):",
        )

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)

    @property
    def module_name(self) -> str:
        """Stable for one path, and different for two files of the same name."""
        stem = "".join(c if c.isalnum() else "_" for c in Path(self.path).stem)
        return f"god_ray_user_{stem}_{hashlib.sha256(self.path.encode()).hexdigest()[:8]}"

    def where(self, function: Callable[..., Any]) -> str:
        code = getattr(function, "__code__", None)
        return f"{self.path}:{code.co_firstlineno}" if code and code.co_filename == self.path else self.path

    def check_arguments(self, function: Callable[..., Any], arguments: tuple[str, ...]) -> None:
        """Refuse a function that cannot be called with these positional arguments."""
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            name, wanted = getattr(function, "__name__", "it"), ", ".join(arguments)
            raise RecipeError(
                f"{self.where(function)}: {name} cannot be called as {name}({wanted})",
                f"{error}.",
                f"define it as def {name}({wanted}):",
            ) from error

    @contextmanager
    def blame(self, doing: str, config: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Turn whatever the user's code raises into a RecipeError that names their line."""
        try:
            yield
        except RecipeError as error:
            if "line" in error.data:
                raise
            place, data = self._place(error)
            raise RecipeError(f"{place}: {error.what}", error.why, error.fix, **data) from error
        except UserError:  # about the data, the storage: it says itself where
            raise
        except (Exception, SystemExit) as error:
            place, data = self._place(error)
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            source = linecache.getline(data["file"], data["line"]).strip()
            raise RecipeError(
                f"{place}: {said}",
                f"Raised by {doing}" + (f", at: {source}" if source else "."),
                _advice(error, config, *self._asked(error)),
                **data,
            ) from error

    def _module(self) -> ModuleType:
        source = self._source()
        stamp = hashlib.sha256(source).hexdigest()
        known = sys.modules.get(self.module_name)
        if known is not None and getattr(known, "__god_ray_stamp__", None) == stamp:
            return known
        self._enter_folder()
        module = self._execute(source)
        module.__dict__["__god_ray_stamp__"] = stamp
        mine = _loaded.setdefault(self.folder, {})
        mine[self.module_name] = module
        for name, loaded in list(sys.modules.items()):
            if name != "__main__" and self._owns(getattr(loaded, "__dict__", {}).get("__file__")):
                mine[name] = loaded
        register_by_value()
        return module

    def _source(self) -> bytes:
        try:
            return Path(self.path).read_bytes()
        except FileNotFoundError:
            folder = Path(self.folder)
            near = [p.name for p in folder.glob("*.py")] if folder.is_dir() else []
            raise RecipeError(
                f"{self.path} does not exist",
                f"Python files there: {', '.join(sorted(near)) or 'none'}.",
                _did_you_mean(os.path.basename(self.path), near) or "correct the path",
            ) from None
        except OSError as error:
            raise RecipeError(
                f"{self.path} cannot be read", f"{error.strerror}.", "name a readable Python file"
            ) from error

    def _execute(self, source: bytes) -> ModuleType:
        """Like an import, but never from a stale .pyc and leaving none behind."""
        spec = importlib.util.spec_from_file_location(self.module_name, self.path)
        if spec is None:
            raise RecipeError(
                f"{self.path} is not a Python file", "Its name must end in .py.", "name a .py file"
            )
        module = importlib.util.module_from_spec(spec)
        linecache.checkcache(self.path)
        sys.modules[self.module_name] = (
            module  # dataclasses and pickle look their module up while it executes
        )
        try:
            with self.blame(f"importing {os.path.basename(self.path)}"):
                exec(compile(source, self.path, "exec"), module.__dict__)
        except RecipeError:
            del sys.modules[self.module_name]
            raise
        return module

    def _enter_folder(self) -> None:
        """Make neighbours importable, and forget those of the same name from other users' folders."""
        if self.folder in sys.path:
            sys.path.remove(self.folder)
        sys.path.insert(0, self.folder)
        for folder, modules in _loaded.items():
            if folder != self.folder:
                for name, module in modules.items():
                    if sys.modules.get(name) is module and self._hides(name):
                        del sys.modules[name]

    def _hides(self, name: str) -> bool:
        top = os.path.join(self.folder, name.partition(".")[0])
        return os.path.isfile(top + ".py") or os.path.isdir(top)

    def _owns(self, path: str | None) -> bool:
        """Whether a source file is the user's: below this folder, but not software installed there."""
        if not path or not path.startswith(os.path.join(self.folder, "")) or "site-packages" in path:
            return False
        return not path.startswith(_INSTALLED)

    def _place(self, error: BaseException) -> tuple[str, dict[str, Any]]:
        """The innermost line of the user's own code, as text and as data."""
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            file, line = error.filename, error.lineno
        else:
            frames = [(f.filename, f.lineno or 1) for f in traceback.extract_tb(error.__traceback__)]
            own = [frame for frame in frames if self._owns(frame[0])]
            file, line = own[-1] if own else (self.path, 1)
        return f"{file}:{line}", {"file": file, "line": line}

    def _asked(self, error: BaseException) -> tuple[str, Mapping[str, Any]]:
        """The innermost expression of the user's own code, and the variables in its reach."""
        trace = error.__traceback__
        steps = zip(traceback.walk_tb(trace), traceback.extract_tb(trace), strict=True)
        own = [(frame, at) for (frame, _), at in steps if self._owns(at.filename)]
        if not own:
            return "", {}
        frame, at = own[-1]
        text = linecache.getline(at.filename, at.lineno or 1)
        if at.lineno == at.end_lineno:  # columns count bytes
            text = text.encode()[at.colno : at.end_colno].decode(errors="replace")
        return text.strip(), ChainMap(frame.f_locals, frame.f_globals)

    def _offer(self, module: ModuleType) -> str:
        return f"Functions defined there: {', '.join(_functions(module)) or 'none'}."

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self.path,)


def _arrive(path: str) -> UserFile:
    """On the receiving side: late imports of neighbours work where the folder exists."""
    file = UserFile(path)
    if os.path.isdir(file.folder) and file.folder not in sys.path:
        sys.path.insert(0, file.folder)
    return file


def register_by_value() -> None:
    """Have Ray pickle users' modules by value. Called again by whoever starts Ray after files were loaded."""
    pickler = sys.modules.get("ray.cloudpickle")
    if pickler is None:
        return
    for modules in _loaded.values():
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                pickler.register_pickle_by_value(module)


def _functions(module: ModuleType) -> list[str]:
    own = vars(module).items()
    return sorted(n for n, v in own if inspect.isfunction(v) and v.__module__ == module.__name__)


def _did_you_mean(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else ""


def _advice(
    error: BaseException, config: Mapping[str, Any] | None, asked: str, variables: Mapping[str, Any]
) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name} in this environment, or put {error.name}.py beside the recipe"
    if isinstance(error, KeyError) and error.args:
        return _key_advice(error.args[0], config, asked, variables) or "correct that line"
    if isinstance(error, SystemExit):
        return "a recipe is imported, not run: move what exits under `if __name__ == '__main__':`"
    return "correct that line"


def _key_advice(key: Any, config: Mapping[str, Any] | None, asked: str, variables: Mapping[str, Any]) -> str:
    """Only a key that config was asked for is advised into the spec."""
    name, held = _mapping_in(asked, variables)
    if held is not None and name != "config" and key not in held:
        keys = [str(k) for k in held]
        known = ", ".join(keys[:_MOST_KEYS]) + (", ..." if len(keys) > _MOST_KEYS else "")
        near = _did_you_mean(str(key), keys)
        return f"{near} {name} has: {known}" if near else f"take a key that {name} has: {known or 'none'}"
    if config is None or key in config or not re.search(r"\bconfig\b", asked):
        return ""
    near = _did_you_mean(str(key), [str(k) for k in config])
    known = ", ".join(map(str, config)) or "empty"
    return near or f"add {key} to config: in the spec (it is: {known}), or use config.get({key!r}, default)"


def _mapping_in(asked: str, variables: Mapping[str, Any]) -> tuple[str, Mapping[Any, Any] | None]:
    """What `asked`, such as batch["label"], takes a key of. Nothing of it is executed."""
    try:
        node = ast.parse(asked or "batch[0]", mode="eval").body  # without its source: the usual name
    except SyntaxError:
        return "", None
    if not isinstance(node, ast.Subscript):
        return "", None
    found = _value(node.value, variables)
    return ast.unparse(node.value), found if isinstance(found, Mapping) else None


def _value(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Of a name, or of constant keys of one; else None."""
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        holder = _value(node.value, variables)
        return holder.get(node.slice.value) if isinstance(holder, Mapping) else None
    return None
