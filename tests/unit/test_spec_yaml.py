"""How a spec's text becomes values: YAML 1.2, every key with its line (cases 9.01 and 9.06)."""

# ruff: noqa: E501  (messages stand on one line, as they are printed)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from god_ray.errors import SpecError
from god_ray.spec import load

MINIMAL = "recipe: recipe.py\ndata: {train: a.parquet}\nbatch_size: 64\nepochs: 2\n"


def config_of(tmp_path: Path, text: str) -> dict[str, Any]:
    given = MINIMAL.replace("}", ", eval: e.parquet}")
    (tmp_path / "run.yaml").write_text(given + text)
    return load(tmp_path / "run.yaml").spec.config


def problems_of(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        load(file)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.data["problems"]]


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", "+1e-3", ".001", "0.001"])
def test_scientific_numbers_are_numbers_everywhere(tmp_path: Path, text: str) -> None:
    config = config_of(
        tmp_path,
        f"clip_norm: {text}\nconfig: {{lr: {text}, deep: {{list: [1, {text}], w: {{d: {text}}}}}}}\n"
        f"sweep: {{metric: loss, search: {{config.lr: {{choice: [{text}]}}, "
        f"config.wd: {{loguniform: [{text}, 1e0]}}}}}}\n",
    )
    assert config == {"lr": 0.001, "deep": {"list": [1, 0.001], "w": {"d": 0.001}}}
    loaded = load(tmp_path / "run.yaml").spec
    assert loaded.clip_norm == 0.001
    assert loaded.sweep is not None
    assert loaded.sweep.search["config.lr"].choice == [0.001]
    assert loaded.sweep.search["config.wd"].loguniform == [0.001, 1.0]


@pytest.mark.parametrize("text", ["1e3", "1E3", "1.0e3", "1000.0", "1000"])
def test_whole_numbers_may_be_scientific(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL.replace("epochs: 2", f"steps: {text}"))
    steps = load(tmp_path / "run.yaml").spec.steps
    assert steps == 1000
    assert type(steps) is int


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("n", "n"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("0123", 123),
        ("12:30:45", "12:30:45"),
        ("22:22", "22:22"),
        ("2025-01-01", "2025-01-01"),
        ("2025-01-01T10:00:00Z", "2025-01-01T10:00:00Z"),
        ("1.10", 1.1),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("'1e-3'", "1e-3"),
        ("!!str 5", "5"),
        ("1e", "1e"),
        ("-5", -5),
        ("=", "="),
    ],
)
def test_scalars_follow_the_core_schema(tmp_path: Path, text: str, value: object) -> None:
    config = config_of(tmp_path, f"config:\n  x: {text}\n  y: [{text or 'null'}]\n")
    assert config == {"x": value, "y": [value]}
    assert type(config["x"]) is type(value)


def test_a_yaml_1_1_directive_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        f"%YAML 1.1\n---\n{MINIMAL}config: {{a: no, b: 1e-3, c: 0123, d: 1:30}}\n"
    )
    assert load(tmp_path / "run.yaml").spec.config == {"a": "no", "b": 0.001, "c": 123, "d": "1:30"}


def test_a_quoted_merge_key_is_a_key(tmp_path: Path) -> None:
    assert config_of(tmp_path, 'config: {"<<": 1, "1": 2}\n') == {"<<": 1, "1": 2}


def test_aliases_are_values_and_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    text = f"{MINIMAL}config:\n  a: &shared [1, {{b: 2}}]\n  c: *shared\n"
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8-sig")
    assert load(tmp_path / "run.yaml").spec.config == {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed: 12:30:45", 'seed = "12:30:45": must be a whole number from 0 to 2^63 - 1. '
         "Fix: write for example seed: 0, or remove the line; the default is 0"),
        ("seed: 2025-01-01", 'seed = "2025-01-01": must be a whole number from 0 to 2^63 - 1. '
         "Fix: write for example seed: 0, or remove the line; the default is 0"),
        ("seed: '64'", 'seed = "64": must be a whole number from 0 to 2^63 - 1. Fix: write seed: 64'),
        ("seed: 1_000", 'seed = "1_000": must be a whole number from 0 to 2^63 - 1. Fix: write seed: 1000'),
        ("seed: true", "seed = true: must be a whole number from 0 to 2^63 - 1. "
         "Fix: write for example seed: 0, or remove the line; the default is 0"),
        ("seed: 1.5", "seed = 1.5: must be a whole number from 0 to 2^63 - 1. "
         "Fix: write for example seed: 0, or remove the line; the default is 0"),
        ("seed:", "seed = null: must be a whole number from 0 to 2^63 - 1. "
         "Fix: write a value, or remove the line; the default is 0"),
        ("clip_norm: NaN", 'clip_norm = "NaN": must be a number above 0, or null. '
         "Fix: write for example clip_norm: 1.0, or null"),
        ("clip_norm: .nan", 'clip_norm = "nan": must be a number above 0, or null; infinity and not-a-number are '
         "refused. Fix: write a finite number, or null"),
        ("clip_norm: 1e400", 'clip_norm = "inf": must be a number above 0, or null; infinity and not-a-number are '
         "refused. Fix: write a finite number, or null"),
        ("config: {x: [.inf]}", 'config.x[0] = "inf": must be a finite number, or null; infinity and not-a-number '
         "are refused. Fix: write a finite number, or null"),
        ("name: 1.10", 'name = 1.1: must be 1 to 100 letters, digits, `.`, `_` or `-`, the first a letter or digit, '
         'without `..`, or null. Fix: put it in quotes: name: "1.10"'),
        ("compile: no", 'compile = "no": must be true or false. Fix: write compile: false'),
        ("compile: on", 'compile = "on": must be true or false. Fix: write compile: true'),
        ("compile: 1", "compile = 1: must be true or false. Fix: write compile: true"),
    ],
)  # fmt: skip
def test_a_field_names_what_it_takes(tmp_path: Path, line: str, message: str) -> None:
    assert problems_of(tmp_path, f"{MINIMAL}{line}\n") == [f"run.yaml:5: {message}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nlanes: 4\nlanes: 8\n", "run.yaml:3: lanes: the key is given twice (first on line 2). "
         "Fix: keep one of them"),
        ("data:\n  train: a\n  'train': b\n", "run.yaml:3: data.train: the key is given twice (first on line 2). "
         "Fix: keep one of them"),
        ("config:\n  1: x\n", 'run.yaml:2: config.1: a key must be text. Fix: put the key in quotes: "1"'),
        ("config:\n  <<: {a: 1}\n", "run.yaml:2: config.<<: YAML 1.2 has no merge key. Fix: write the keys out"),
        ("config: {f: !!python/name:os.system x}\n", "run.yaml:1: config.f: the tag !!python/name:os.system means "
         "nothing in a spec. Fix: remove !!python/name:os.system"),
        ("config: &a\n  b: *a\n", "run.yaml:1: config.b: an alias (`*name`) stands for itself. "
         "Fix: write the values out"),
    ],
)  # fmt: skip
def test_faults_of_the_text_are_reported_with_the_others(tmp_path: Path, text: str, message: str) -> None:
    found = problems_of(tmp_path, text)
    assert message in found
    assert len(found) > 1  # the missing keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "run.yaml:1: the file is empty. "
         "Fix: write `recipe: recipe.py` and the other keys, one on a line (docs/spec.md)"),
        ("- recipe: a\n", "run.yaml:1: the top level must be a mapping of keys. "
         "Fix: write `recipe: recipe.py` and the other keys, one on a line (docs/spec.md)"),
        ("recipe: a\ndata:\n\ttrain: b\n", "run.yaml:3: not YAML: found character '\\t' that cannot start any token. "
         "Fix: indent with spaces, not with tabs"),
        ("recipe: a\ndata: {train: *.parquet}\n", "run.yaml:2: not YAML: found undefined alias '.parquet'. "
         "Fix: put text that starts with * in quotes"),
        ("recipe: a\n---\nseed: 1\n", "run.yaml:2: not YAML: but found another document. "
         "Fix: keep one document; a spec has no `---` in the middle"),
        ("name: a: b\n", "run.yaml:1: not YAML: mapping values are not allowed here. "
         "Fix: put text that contains `: ` in quotes, or check the indentation"),
        (f"config: {'[' * 800}", "run.yaml:1: nested too deeply to be read. Fix: write it flatter"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_read_is_one_problem(tmp_path: Path, text: str, message: str) -> None:
    assert problems_of(tmp_path, text) == [message]


def test_aliases_of_aliases_are_cut_off(tmp_path: Path) -> None:
    levels = "".join(f"  x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 12))
    found = problems_of(tmp_path, f"{MINIMAL}config:\n  x0: &x0 [1]\n{levels}")
    assert any("more than 100000 values" in message for message in found)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    for name, rule in [
        ("none.yaml", "no such file"),
        ("", "is a folder"),
        ("latin.yaml", "is not UTF-8 text (byte 9)"),
    ]:
        with pytest.raises(SpecError) as caught:
            load(tmp_path / name)
        assert [problem.rule for problem in caught.value.data["problems"]] == [rule]
