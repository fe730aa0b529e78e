"""docs/spec.md, written from the models: every key with its kind, default and meaning.

In: the models. Out: Markdown. `python -m god_ray.spec` writes it; a test holds the file to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.fields import FieldInfo

from god_ray.spec.mend import default
from god_ray.spec.problem import Path, dotted
from god_ray.spec.run import RunSpec
from god_ray.spec.schema import SEARCH, fields, nullable, says, section_at, section_in
from god_ray.spec.sweep import Distribution
from god_ray.spec.values import Section

_INTRO = """\
# The run spec

<!-- Written by `python -m god_ray.spec`; do not edit. -->

A run spec says how a recipe is trained. It is one YAML 1.2 file; only `recipe`, `data.train`, `batch_size`
and one of `epochs` and `steps` are required.

```yaml
recipe: recipe.py
data: {train: train.parquet, eval: test.parquet}
batch_size: 256
epochs: 10
config: {lr: 1e-3}      # free values, handed to build(config)
```

- **All faults at once.** `god-ray check SPEC` names each with file and line, key, value, rule and what to
  write instead. Unknown keys and keys given twice are faults.
- **Who wins.** `--set a.b=c` over Python keywords over the file over the default. The value of `--set` is
  read as YAML: `--set data.train=[a.parquet, b.parquet]`, `--set epochs=null`. A mapping given for a section
  changes only the keys it names; below `config.KEY` a value is replaced whole. The resolved spec, kept with
  the run, names each value's origin.
- **Values.** `1e-3` is a number, also inside `config` and lists; a whole number may be written `1e3`. `no`,
  `on`, `12:30` and `2025-01-01` are text, `0123` is 123, `1.10` is the number 1.1 (quote it where text is
  meant). `NaN` and infinity are refused. There are no merge keys (`<<`) and no tags.
- **Variables are not expanded.** `${NAME}` anywhere in a spec is refused, so that an unset variable is never
  taken for a value. Let the shell fill it in: `--set config.x="$NAME"`. A spec is kept with the run as plain
  text: secrets belong in the environment of the recipe, not here.
- **Paths.** `recipe`, `data.train`, `data.eval`, `data.preprocess` and `init_from` start at the spec's
  folder, also when they come from `--set`; `storage` at the folder the command runs in. `~` is the home
  folder; `file:///a%20b` is the path `/a b`; `s3://...` stays as it is. All of that once, when the spec is
  read: the resolved spec has whole paths.
- **Many runs.** A sweep needs `data.eval`, and a section such as `sweep: {metric: accuracy, mode: max,
  trials: 20, search: {config.lr: {loguniform: [1e-4, 1e-1]}, batch_size: {choice: [64, 128]}}}`.
- **Size.** `workers` may be written `4` or `2:8`; it is not part of the result. `lanes` and `batch_size` are.
"""


def reference_markdown() -> str:
    """The text of docs/spec.md."""
    parts = [_INTRO, _table("Top level", "", ((name,) for name in RunSpec.model_fields))]
    for path, info in fields():
        section = section_in(info.annotation)
        if section is not None:
            parts.append(
                _table(f"`{dotted(path)}`", _doc(section), ((*path, name) for name in section.model_fields))
            )
    drawn = (*SEARCH, "KEY")
    parts.append(
        _table(
            f"`{dotted(drawn)}`", _doc(Distribution), ((*drawn, name) for name in Distribution.model_fields)
        )
    )
    return "\n".join(parts)


def _table(title: str, text: str, paths: Iterator[Path]) -> str:
    rows = [_row(path) for path in paths]
    intro = f"{text}\n\n" if text else ""
    return f"## {title}\n\n{intro}| key | value | default | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _row(path: Path) -> str:
    parent = section_at(path[:-1])
    assert parent is not None
    info = parent.model_fields[str(path[-1])]
    cells = (f"`{dotted(path)}`", _kind(info), _default(info), info.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _kind(info: FieldInfo) -> str:
    return says(info).rule + (", or null" if nullable(info) else "")


def _default(info: FieldInfo) -> str:
    inner = section_in(info.annotation)
    if inner is not None and not nullable(info):
        required = any(part.is_required() for part in inner.model_fields.values())
        return "required" if required else "see below"
    return "required" if info.is_required() else f"`{default(info)}`"


def _doc(section: type[Section]) -> str:
    return " ".join((section.__doc__ or "").split())
