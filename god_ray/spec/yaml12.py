"""YAML 1.2 to plain values with lines: `1e-3` is a number, `no` is text, a date is text, a key is given once.

In: text. Out: a `Tree`; every fault of the text that can be told apart is in its `problems`. ruamel.yaml
scans and composes; scalars are read here by the core schema of YAML 1.2.2 (section 10.3.2), because ruamel
also accepts dates, `1_000` and `0b1`, and `%YAML 1.1` would change the meaning of all of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from god_ray.spec.problem import ABSENT, Path, Problem, dotted
from god_ray.spec.tree import Place, Tree

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node, ScalarNode

_MAX_NODES = 100_000  # aliases of aliases can stand for billions of values
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]{1,4000}")
_OCTAL = re.compile(r"0o[0-7]{1,4000}")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,4000}")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_PLAIN_TAGS = {"str", "int", "float", "bool", "null", "map", "seq"}


def scalar(text: str) -> Any:
    """An unquoted scalar's value by the core schema."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def read(text: str, place: Place) -> tuple[Any, dict[Path, Place], list[Problem]]:
    """The value of a YAML text, the place of every key in it, and its faults.

    `place` says where the text is; `place.line` is 0 for text that has no lines (`--set`), 1 for a file.
    """
    from ruamel.yaml import YAML  # 8 ms, and not needed for a spec that is given as a mapping
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        node = YAML(pure=True).compose(text)
    except RecursionError:
        rule, fix = "nested too deeply to be read", "write it flatter"
        return ABSENT, {}, [Problem("", ABSENT, rule, fix, place.file, place.line)]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if place.line and mark else place.line
        what = str(error.problem or error.context)
        written = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
        return (
            ABSENT,
            {},
            [Problem("", ABSENT, f"not YAML: {what}", _syntax_fix(what, written), place.file, line)],
        )
    except YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1 if place.line else 0
        what = " ".join(str(error).split())
        fix = "save the file as plain UTF-8 text"
        return ABSENT, {}, [Problem("", ABSENT, f"not YAML: {what}", fix, place.file, line)]
    builder = _Builder(place)
    value = builder.build(node, (), ()) if node is not None else None
    return value, builder.places, builder.problems


def read_file(text: str, file: str, origin: str) -> Tree:
    """A whole spec file; its top level must be a mapping."""
    root = Place(file, origin, 1)
    value, places, problems = read(text, root)
    tree = Tree(root, places=places, problems=problems)
    if isinstance(value, dict):
        tree.value = value
    elif value is not ABSENT:
        rule = "the file is empty" if value is None else "the top level must be a mapping of keys"
        fix = "write `recipe: recipe.py` and the other keys, one on a line (docs/spec.md)"
        problems.append(Problem("", ABSENT, rule, fix, file, 1))
    return tree


def _syntax_fix(what: str, written: str) -> str:
    if "${" in written:
        return "write the value instead of ${...}; variables are not expanded in a spec"
    if "\\t" in what or "\t" in what:
        return "indent with spaces, not with tabs"
    if "alias" in what:
        return "put text that starts with * in quotes"
    if "mapping values are not allowed" in what:
        return "put text that contains `: ` in quotes, or check the indentation"
    if "document" in what:
        return "keep one document; a spec has no `---` in the middle"
    return "mend the syntax here or on the line above"


class _Builder:
    def __init__(self, place: Place) -> None:
        self.root = place
        self.places: dict[Path, Place] = {}
        self.problems: list[Problem] = []
        self.num_nodes = 0

    def build(self, node: Node, path: Path, parents: tuple[int, ...]) -> Any:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        self.num_nodes += 1
        if id(node) in parents or self.num_nodes > _MAX_NODES:
            rule = (
                "an alias (`*name`) stands for itself"
                if id(node) in parents
                else f"more than {_MAX_NODES} values"
            )
            self.fault(path, node, rule, "write the values out")
            return None
        self.check_tag(node, path)
        self.places.setdefault(path, self.at(node))
        if isinstance(node, ScalarNode):
            return self.scalar(node)
        if isinstance(node, SequenceNode):
            inner = (*parents, id(node))
            return [self.build(item, (*path, i), inner) for i, item in enumerate(node.value)]
        assert isinstance(node, MappingNode)
        return self.mapping(node, path, (*parents, id(node)))

    def mapping(self, node: Node, path: Path, parents: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            if key in result:
                first = self.places[here].line
                where = f" (first on line {first})" if first else ""
                self.fault(here, key_node, f"the key is given twice{where}", "keep one of them")
                continue
            self.places[here] = self.at(key_node, value_node)
            result[key] = self.build(value_node, here, parents)
        return result

    def key(self, node: Node, path: Path) -> str | None:
        """A key must be text; None when it is not, or is YAML 1.1's merge key."""
        from ruamel.yaml.nodes import ScalarNode

        if isinstance(node, ScalarNode):
            value = self.scalar(node)
            if value == "<<" and not node.style:
                self.fault((*path, "<<"), node, "YAML 1.2 has no merge key", "write the keys out")
                return None
            if isinstance(value, str):
                return value
        name = node.value if isinstance(node.value, str) else "?"
        self.fault((*path, name), node, "a key must be text", f'put the key in quotes: "{name}"')
        return None

    def scalar(self, node: ScalarNode) -> Any:
        quoted = node.style is not None and node.style != ""
        if quoted or (node.ctag.handle is not None and node.ctag.suffix == "str"):
            return str(node.value)
        return scalar(str(node.value))

    def check_tag(self, node: Node, path: Path) -> None:
        tag = node.ctag
        if tag.handle is not None and (tag.handle != "!!" or tag.suffix not in _PLAIN_TAGS):
            written = f"{tag.handle}{tag.suffix}"
            self.fault(path, node, f"the tag {written} means nothing in a spec", f"remove {written}")

    def at(self, node: Node, value: Node | None = None) -> Place:
        line = node.start_mark.line + 1 if self.root.line else 0
        written = (value or node).value
        return Place(self.root.file, self.root.origin, line, written if isinstance(written, str) else "")

    def fault(self, path: Path, node: Node, rule: str, fix: str) -> None:
        place = self.at(node)
        self.problems.append(Problem(dotted(path), ABSENT, rule, fix, place.file, place.line))
