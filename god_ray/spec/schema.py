"""What the models say about a key: its section, its rule in words, its default. The only reader of pydantic's
insides.

In: a path of keys, such as ("data", "window"). Out: the field there, the section it opens, the words for its
values. Knows no particular key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from god_ray.spec.problem import Path
from god_ray.spec.run import RunSpec
from god_ray.spec.values import Says, Section

FREE: Path = ("config",)
SEARCH: Path = ("sweep", "search")


def section_at(path: Path) -> type[Section] | None:
    """The section that the keys of `path` open, or None when it leads to a value, or nowhere."""
    section: type[Section] | None = RunSpec
    for depth, part in enumerate(path):
        if path[:depth] == SEARCH:
            section = _value_section(SEARCH)
            continue
        info = section.model_fields.get(str(part)) if section else None
        section = section_in(info.annotation) if info else None
    return section


def field_at(path: Path) -> FieldInfo | None:
    """The field that `path` names; for a path into a list or a mapping of free values, None."""
    section = section_at(path[:-1]) if path else None
    return section.model_fields.get(str(path[-1])) if section else None


def fields(section: type[Section] = RunSpec, prefix: Path = ()) -> Iterator[tuple[Path, FieldInfo]]:
    """Every key of the spec with its path, sections before what is in them."""
    for name, info in section.model_fields.items():
        yield (*prefix, name), info
        inner = section_in(info.annotation)
        if inner is not None:
            yield from fields(inner, (*prefix, name))


def section_in(annotation: Any) -> type[Section] | None:
    """The section that a field holds, through `| None` and Annotated."""
    for part in _alternatives(annotation):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def nullable(info: FieldInfo) -> bool:
    return type(None) in _alternatives(info.annotation)


def kinds(info: FieldInfo) -> set[Any]:
    """The plain types that a field accepts: a subset of int, float, bool, str, list and NoneType."""
    return {get_origin(part) or part for part in _alternatives(info.annotation)}


def choices(info: FieldInfo) -> tuple[str, ...]:
    """The words a field accepts, when it accepts only words."""
    for part in _alternatives(info.annotation):
        if get_origin(part) is Literal:
            return get_args(part)
    return ()


def says(info: FieldInfo) -> Says:
    """The words for a field's values: `Says` where the kind has one, else from its choices or its section's
    keys.
    """
    found = next((m for m in (*info.metadata, *_metadata(info.annotation)) if isinstance(m, Says)), None)
    if found is not None:
        return replace(found, example=str(info.examples[0])) if info.examples else found
    if words := choices(info):
        return Says("one of " + ", ".join(words), words[0])
    inner = section_in(info.annotation)
    if inner is None:
        return Says("a mapping", "{}")
    return Says(f"a mapping of {', '.join(inner.model_fields)}", _example_of(inner))


def _example_of(section: type[Section]) -> str:
    """What it requires; of a section that requires nothing, its first key."""
    infos = section.model_fields
    names = [name for name, info in infos.items() if info.is_required()] or list(infos)[:1]
    return "{" + ", ".join(f"{name}: {says(infos[name]).example}" for name in names) + "}"


def _value_section(path: Path) -> type[Section] | None:
    """The section that each value of a mapping holds."""
    info = field_at(path)
    return section_in(get_args(info.annotation)[1]) if info else None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(part for arg in get_args(annotation) for part in _alternatives(arg))
    return (annotation,)


def _metadata(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return (*metadata, *_metadata(inner))
    if get_origin(annotation) in (Union, UnionType):
        return tuple(m for arg in get_args(annotation) for m in _metadata(arg))
    return ()
