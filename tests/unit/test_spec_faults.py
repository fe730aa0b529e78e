"""Every fault of a spec at once, each with file:line, key, value, rule and fix (cases 9.03 and 9.05)."""

# ruff: noqa: E501  (messages stand on one line, as they are printed)

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from god_ray.errors import SpecError
from god_ray.spec import ABSENT, Problem, load

MINIMAL = "recipe: recipe.py\ndata: {train: a.parquet}\nbatch_size: 64\nepochs: 2\n"

ALL_AT_ONCE = """\
recipe: 5
data:
  shuffel: full
  columns: [a, a]
  batch_size: 3
batch_size: 4
num-epochs: 3
workers: 8:5
learning_rate: 1e-3
checkpont: {}
stop_when: {metric: acc}
compile: no
precision: fp16
config: {x: .inf, token: "${TOKEN}", x: 2}
name: a..b
seed: true
steps: 10
epochs: 2
"""

EVERY_FAULT = """\
run.yaml:1: recipe = 5: must be text. Fix: put it in quotes: recipe: "5"
run.yaml:2: data.train: is required: text or a list of texts, at least one. Fix: add `train: train.parquet`
run.yaml:3: data.shuffel = "full": unknown key. Fix: did you mean data.shuffle?
run.yaml:4: data.columns = ["a", "a"]: must be a list of different column names, or null. Fix: write for example columns: [pixels, label], or null
run.yaml:5: data.batch_size = 3: unknown key. Fix: batch_size belongs at the top level
run.yaml:6: batch_size = 4: is below lanes * data.min_leaf_rows = 4 * 2 = 8. Fix: set batch_size: 8 or more, or fewer lanes
run.yaml:7: num-epochs = 3: unknown key. Fix: did you mean epochs?
run.yaml:8: workers.min = 8: is above workers.max = 5. Fix: set workers: 5:8
run.yaml:8: workers.min = 8: is above lanes = 4, and every worker needs a lane. Fix: lanes is part of the result; set lanes: 8, or at most 4 workers
run.yaml:9: learning_rate = 0.001: unknown key. Fix: values for the recipe go under config: write config: {lr: ...}
run.yaml:10: checkpont = {}: unknown key. Fix: did you mean checkpoint?
run.yaml:11: stop_when.metric = "acc": watches the evaluation metric 'acc', but there is no data.eval. Fix: add `data: {eval: ...}`, or remove stop_when
run.yaml:12: compile = "no": must be true or false. Fix: write compile: false
run.yaml:13: precision = "fp16": must be one of fp32, bf16-mixed. Fix: did you mean fp32?
run.yaml:14: config.x: the key is given twice (first on line 14). Fix: keep one of them
run.yaml:14: config.x = "inf": must be a finite number, or null; infinity and not-a-number are refused. Fix: write a finite number, or null
run.yaml:14: config.token = "${TOKEN}": variables are not expanded in a spec. Fix: write the value, or let the shell fill it in: --set config.token="$NAME"
run.yaml:15: name = "a..b": must be 1 to 100 letters, digits, `.`, `_` or `-`, the first a letter or digit, without `..`, or null. Fix: write for example name: digits-1, or null
run.yaml:16: seed = true: must be a whole number from 0 to 2^63 - 1. Fix: write for example seed: 0, or remove the line; the default is 0
run.yaml:17: steps = 10: exactly one of epochs and steps is needed, and epochs = 2 is given too. Fix: keep one; `--set epochs=null` takes the other away
--set: workers.maxx = 3: unknown key. Fix: did you mean workers.max?
"""


def problems(spec: str, *overrides: str) -> list[Problem]:
    Path("run.yaml").write_text(spec)
    with pytest.raises(SpecError) as caught:
        load("run.yaml", overrides)
    found = caught.value.data["problems"]
    assert isinstance(found, list)
    return found


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_faults_at_once_in_the_order_of_the_file() -> None:
    found = problems(ALL_AT_ONCE, "workers.maxx=3")
    assert "".join(f"{problem}\n" for problem in found) == EVERY_FAULT
    assert found[1] == Problem(
        key="data.train",
        value=ABSENT,
        rule="is required: text or a list of texts, at least one",
        fix="add `train: train.parquet`",
        file="run.yaml",
        line=2,
    )


def test_the_error_tells_all_survives_pickling_and_nothing_is_created(tmp_path: Path) -> None:
    Path("run.yaml").write_text(MINIMAL + "seeds: 1\nnmae: x\n")
    with pytest.raises(SpecError) as caught:
        load("run.yaml", storage="./elsewhere")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (
        str(again)
        == str(caught.value)
        == (
            "run.yaml has 2 faults; nothing was started.\n"
            "  run.yaml:5: seeds = 1: unknown key. Fix: did you mean seed?\n"
            '  run.yaml:6: nmae = "x": unknown key. Fix: did you mean name?'
        )
    )
    assert again.data["problems"] == caught.value.data["problems"]
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("workers.cpus=10001", "workers.cpus = 10001: must be a number from 0 to 10000. "),
        ("workers.gpus=1e9", "workers.gpus = 1000000000.0: must be a number from 0 to 10000. "),
        ("epochs=1e13", "epochs = 10000000000000.0: must be a whole number from 1 to 10^12, or null. "),
        ("steps=1000000000001", "steps = 1000000000001: must be a whole number from 1 to 10^12, or null. "),
    ],
)
def test_numbers_that_no_cluster_has_are_refused(override: str, said: str) -> None:
    [found] = problems(MINIMAL, override)
    assert str(found).startswith(f"--set: {said}Fix: write for example ")


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("data=7", "write for example data: {train: train.parquet}"),
        ("checkpoint=3", "write for example checkpoint: {every_steps: 1}, or remove the line; the default is that "
         "of each key of checkpoint"),
        ("checkpoint.keep_best=3", "write for example keep_best: {metric: accuracy}, or null"),
        ("stop_when=acc", "write for example stop_when: {metric: accuracy}, or null"),
    ],
)  # fmt: skip
def test_an_example_of_a_section_is_one_that_loads(override: str, fix: str) -> None:
    assert [problem.fix for problem in problems(MINIMAL, override)] == [fix]
    given = {"recipe": "r.py", "data": {"train": "a", "eval": "b"}, "batch_size": 8, "steps": 1}
    section = override.rpartition("=")[0].rpartition(".")[0]
    text = fix.removeprefix("write for example ").split(", or ")[0].replace(": ", "=", 1)
    load(given, [f"{section}.{text}" if section else text])


@pytest.mark.parametrize(
    ("line", "key", "fix"),
    [
        ("batch_sise: 64", "batch_sise", "did you mean batch_size?"),
        ("batch-size: 64", "batch-size", "did you mean batch_size?"),
        ("batchSize: 64", "batchSize", "did you mean batch_size?"),
        ("num-epochs: 3", "num-epochs", "did you mean epochs?"),
        ("max_steps: 3", "max_steps", "did you mean steps?"),
        ("checkpont: {every_s: 5}", "checkpont", "did you mean checkpoint?"),
        ("learning_rate: 1", "learning_rate", "values for the recipe go under config: write config: {lr: ...}"),
        ("num_workers: 3", "num_workers", "did you mean workers?"),
        ("every_steps: 5", "every_steps", "every_steps belongs in checkpoint: write checkpoint: {every_steps: ...}"),
        ("eval: {train: x}", "eval.train", "train belongs in data: write data: {train: ...}"),
        ("stop_when: {metric: a, lanes: 2}", "stop_when.lanes", "lanes belongs at the top level"),
        ("max: 4", "max", "max belongs in workers: write workers: {max: ...} or max belongs in failures: write "
         "failures: {max: ...} or max belongs in sweep.asha: write sweep: {asha: {max: ...}}"),
        ("data.train: b", "data.train", "write it nested: data: {train: ...}"),
        ("config.lr: 1", "config.lr", "write it nested: config: {lr: ...}"),
        ("evry_s: 5", "evry_s", "did you mean checkpoint.every_s?"),
        ("frobnicate: 1", "frobnicate", "remove it; values for the recipe go under config: config.frobnicate"),
        ("workers: {min: 1, frobnicate: 1}", "workers.frobnicate", "remove it; workers has min, max, cpus, gpus"),
        ("determinism: {iza: avx2}", "determinism.iza", "did you mean determinism.isa?"),
        ("sweep: {metric: a, search: {config.x: {log_uniform: [1, 2]}}}", "sweep.search.config.x.log_uniform",
         "did you mean sweep.search.config.x.loguniform?"),
    ],
)  # fmt: skip
def test_unknown_keys_are_named_with_what_was_meant(line: str, key: str, fix: str) -> None:
    found = [p for p in problems(f"{MINIMAL}{line}\n") if p.rule == "unknown key"]
    assert [(p.key, p.fix, p.file, p.line) for p in found] == [(key, fix, "run.yaml", 5)]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch_sise=64", "--set: batch_sise = 64: unknown key. Fix: did you mean batch_size?"),
        ("data.trian=[b]", '--set: data.trian = ["b"]: unknown key. Fix: did you mean data.train?'),
        ("lr=1e-3", "--set: lr = 0.001: unknown key. Fix: values for the recipe go under config: write "
         "config: {lr: ...}"),
        ("batch_size", "--set: batch_size: must be KEY=VALUE. Fix: write for example --set batch_size=64"),
        ("=5", "--set: =5: must be KEY=VALUE. Fix: write for example --set batch_size=64"),
        ("a..b=5", "--set: a..b=5: must be KEY=VALUE. Fix: write for example --set batch_size=64"),
        ("batch_size.x=5", "--set: batch_size.x = 5: batch_size = 64 has no keys in it. "
         "Fix: set it whole: batch_size=..."),
        ("batch_size=sixty", '--set: batch_size = "sixty": must be a whole number, 1 or more. '
         "Fix: write for example batch_size: 256"),
        ("data.train=*.parquet", '--set: data.train = "*.parquet": not YAML: found undefined alias \'.parquet\'. '
         "Fix: put the text in quotes: --set 'data.train=\"*.parquet\"'"),
        ("config.x={a: 1, a: 2}", "--set: config.x.a: the key is given twice. Fix: keep one of them"),
        ("config.key=${KEY}", '--set: config.key = "${KEY}": variables are not expanded in a spec. '
         'Fix: write the value, or let the shell fill it in: --set config.key="$NAME"'),
        ("workers=8", "--set: workers.max = 8: is above lanes = 4, and every worker needs a lane. "
         "Fix: lanes is part of the result; set lanes: 8, or at most 4 workers"),
    ],
)  # fmt: skip
def test_an_override_is_checked_like_the_file(override: str, message: str) -> None:
    assert [str(problem) for problem in problems(MINIMAL, override)] == [message]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('config: {token: "${TOKEN}"}', "config.token"),
        ('config: {list: [a, "b${Y:-}c"]}', "config.list[1]"),
        ('config: {"${KEY}": 1}', "config.${KEY}"),
        ("storage: $${TOKEN}", "storage"),
        ("compile: ${X:false}", "compile"),
        ("storage: ${HOME}/runs", "storage"),
        ("seed: ${SEED}", "seed"),
        ("clip_norm: ${oc.env:CLIP}", "clip_norm"),
        ("sweep: {metric: a, search: {config.a: {choice: ['${A}']}}}", "sweep.search.config.a.choice[0]"),
    ],
)
def test_variables_are_refused_and_never_looked_up(
    line: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOKEN", "X", "Y", "SEED"):
        monkeypatch.setenv(name, "hunter2")
    found = problems(f"{MINIMAL}{line}\n", "data.eval=e.parquet")
    assert [(p.key, p.rule, p.line) for p in found] == [(key, "variables are not expanded in a spec", 5)]
    assert found[0].fix == f'write the value, or let the shell fill it in: --set {key}="$NAME"'
    assert "hunter2" not in str(found[0])


def test_a_variable_that_is_not_even_yaml() -> None:
    assert [str(problem) for problem in problems(f"{MINIMAL}config: {{flag: ${{X:false}}}}\n")] == [
        "run.yaml:5: not YAML: expected ',' or '}', but got '{'. "
        "Fix: write the value instead of ${...}; variables are not expanded in a spec"
    ]


def test_a_dollar_sign_alone_is_text() -> None:
    spec = load(
        {"recipe": "r.py", "data": {"train": "a"}, "batch_size": 8, "steps": 1, "config": {"x": "$5 {a}"}}
    ).spec
    assert spec.config == {"x": "$5 {a}"}


def test_what_python_gives_must_be_plain() -> None:
    given = {"recipe": "r.py", "data": {"train": "a"}, "batch_size": 8, "steps": 1}
    with pytest.raises(SpecError) as caught:
        load(given, config={"f": len, "s": {1}, 2: "x", "n": float("nan")})
    assert [(p.key, p.file, p.rule) for p in caught.value.data["problems"]] == [
        ("config.f", "python",
         "a spec holds text, numbers, true, false, null, lists and mappings, not builtin_function_or_method"),
        ("config.s", "python", "a spec holds text, numbers, true, false, null, lists and mappings, not set"),
        ("config.2", "python", "a key must be text"),
        ("config.n", "python", "must be a finite number, or null; infinity and not-a-number are refused"),
    ]  # fmt: skip
