"""The text of the recipe.py and run.yaml that `god-ray init` writes.

In: a `Look` at the data, or nothing. Out: {"recipe.py": text, "run.yaml": text}. Without data, the lines a
user must edit carry MARK. Needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from god_ray.cli.starter.columns import Look

MARK = "<- EDIT"
AIM_STEPS = 1000

RECIPE = Template('''\
"""$title

Written by `god-ray init`, yours to change. god_ray calls build(config) with the `config:` of run.yaml.
"""

import god_ray
import torch
from torch import nn
from torch.nn import functional

# The input columns: (numbers per row, mean, standard deviation)$measured.
COLUMNS = {
$columns
}
LABEL = $label
$constants


class Net(nn.Module):
    """A small perceptron that standardises its inputs itself: the trained model takes the raw columns."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.cat([torch.full((n,), mean) for n, mean, _ in COLUMNS.values()]))
        self.register_buffer("std", torch.cat([torch.full((n,), std) for n, _, std in COLUMNS.values()]))
        self.layers = nn.Sequential(
            nn.Linear(len(self.mean), hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, $outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers((x - self.mean) / self.std)


def inputs(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The input columns side by side: float32 [rows, numbers]."""
    return torch.cat([batch[name].float().reshape(len(batch[name]), -1) for name in COLUMNS], dim=1)


$task
def build(config: dict) -> god_ray.Recipe:
    """Called by god_ray, in every process. The random generators are seeded before."""
    model = Net(hidden=config["hidden"], dropout=config["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    return god_ray.Recipe(model=model, optimizer=optimizer, loss=loss, metrics=metrics)
''')

CLASSIFICATION = Template('''\
def target(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The class of each row: int64 [rows]."""
    return $target


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean over the batch's rows; this is what is trained on."""
    return functional.cross_entropy(model(inputs(batch)), target(batch))


def metrics(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One number per row; god_ray averages them over `data.eval`."""
    logits = model(inputs(batch))
    return {
        "accuracy": (logits.argmax(dim=1) == target(batch)).float(),
        "loss": functional.cross_entropy(logits, target(batch), reduction="none"),
    }

''')

REGRESSION = '''\
def target(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The label in units of its standard deviation, which is what the model predicts: float32 [rows]."""
    return (batch[LABEL].float() - LABEL_MEAN) / LABEL_STD


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean over the batch's rows; this is what is trained on."""
    return functional.mse_loss(model(inputs(batch)).squeeze(1), target(batch))


def metrics(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One number per row; god_ray averages them over `data.eval`. `error` is in the label's own unit."""
    off = model(inputs(batch)).squeeze(1) - target(batch)
    return {"error": off.abs() * LABEL_STD, "loss": off.square()}

'''

ENCODE = '''\
def encode(table):
    """`data.preprocess`: turns the label into class numbers, before the rows become tensors."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pa.array(CLASSES)
    numbers = pc.index_in(table[LABEL].cast(values.type), value_set=values)
    if numbers.null_count:
        raise ValueError(f"{LABEL} has a value that is not in CLASSES")
    return table.set_column(table.column_names.index(LABEL), LABEL, numbers.cast(pa.int64()))


'''

SPEC = Template("""\
# How to train recipe.py. Every key: docs/spec.md. Start with: god-ray check run.yaml
recipe: recipe.py  # the file with build(config); paths are relative to this file

data:
  train: $train  # rows to train on: Parquet files, folders or globs$mark
$eval
$columns
$preprocess
config:  # handed to build(config) as a dict
  lr: 1e-3  # learning rate of AdamW
  weight_decay: 0.01  # pulls weights towards 0
  hidden: 128  # width of the network
  dropout: 0.1  # share of activations dropped while training

batch_size: $batch_size  # rows of one step, over all workers$batch_note
epochs: $epochs  # passes over the data$epochs_note; or `steps: N` instead
lanes: 4  # fixed slices of each batch: part of the result, and the most workers the run can use
workers: 2  # processes; any number from 1 to `lanes` gives the same bits
seed: 0  # start of every random number

checkpoint:  # the state, saved in the run's folder
  every_s: 60  # seconds between checkpoints
  keep: 3  # how many stay; `god-ray resume` goes on from the newest
""")

SPLIT = (
    "  # To make it of t = pq.read_table(FILE): every tenth row, t.filter(np.arange(len(t)) % 10 == 0); "
    "train on the others"
)


def filled(look: Look, folder: Path) -> dict[str, str]:
    """Both files, for data that was looked at; `folder` is where they will lie."""
    kind = "classification" if look.classes else "regression"
    return {
        "recipe.py": RECIPE.substitute(
            title=f"Predict {look.label} with a small network: {kind}.",
            measured=f", measured on {look.sampled} rows",
            columns=_columns(look),
            label=_text(look.label),
            constants=_constants(look),
            outputs="len(CLASSES)" if look.classes else "1",
            task=_task(look),
        ),
        "run.yaml": SPEC.substitute(
            train=_yaml(_relative(look.data, folder)),
            mark="",
            eval=_eval(look, folder),
            columns=_read_columns(look),
            preprocess=_preprocess(look),
            batch_size=(batch_size := _batch_size(look.num_rows)),
            batch_note=f"; {-(-look.num_rows // batch_size)} steps per epoch",
            epochs=min(max(AIM_STEPS * batch_size // look.num_rows, 2), 100),
            epochs_note=f", chosen for about {AIM_STEPS} steps (but 2 to 100 passes)",
        ),
    }


def blank() -> dict[str, str]:
    """Both files for columns nobody has seen: the lines to edit are marked."""
    return {
        "recipe.py": RECIPE.substitute(
            title="Predict a label: classification with a small network.",
            measured=" (0 and 1: as they are)",
            columns=f'    "image": (64, 0.0, 1.0),  # {MARK}: a column of your data and its numbers per row',
            label=f'"label"  # {MARK}: the column to predict',
            constants=f"CLASSES = range(10)  # {MARK}: the values it has, 0 to one less than their number",
            outputs="len(CLASSES)",
            task=CLASSIFICATION.substitute(target="batch[LABEL].long()"),
        ),
        "run.yaml": SPEC.substitute(
            train="data/train.parquet",
            mark=f" {MARK}",
            eval=f"  eval: data/test.parquet  # rows to evaluate on each epoch; or leave it out {MARK}",
            columns="  # columns: [image, label]  # read only these columns",
            preprocess="",
            batch_size=64,
            batch_note="",
            epochs=10,
            epochs_note="",
        ),
    }


def _columns(look: Look) -> str:
    return "\n".join(f"    {_text(c.name)}: ({c.width}, {c.mean!r}, {c.std!r})," for c in look.inputs)


def _constants(look: Look) -> str:
    classes = look.classes
    if not classes:
        return f"LABEL_MEAN, LABEL_STD = {look.label_mean!r}, {look.label_std!r}"
    if not _encoded(look):
        return f"CLASSES = range({len(classes)})"
    lines = "".join(f"    {_text(v) if isinstance(v, str) else v},\n" for v in classes)
    return f"CLASSES = [  # the label's values, in the order of their class numbers\n{lines}]"


def _task(look: Look) -> str:
    if not look.classes:
        return REGRESSION
    return (ENCODE if _encoded(look) else "") + CLASSIFICATION.substitute(target="batch[LABEL].long()")


def _encoded(look: Look) -> bool:
    """Whether the label's values are something else than 0, 1, 2, ..."""
    return bool(look.classes) and look.classes != list(range(len(look.classes)))


def _eval(look: Look, folder: Path) -> str:
    if look.eval is None:
        return f"  # eval: test.parquet  # rows to evaluate on each epoch\n{SPLIT}"
    return f"  eval: {_yaml(_relative(look.eval, folder))}  # rows to evaluate on each epoch"


def _read_columns(look: Look) -> str:
    lines = [f"    - {_yaml(name)}" for name in [*(c.name for c in look.inputs), look.label]]
    return "\n".join(["  columns:  # what is read; other columns are not touched", *lines])


def _preprocess(look: Look) -> str:
    if not _encoded(look):
        return ""
    return "  preprocess: recipe.py:encode  # runs on the Arrow table before the rows become tensors\n"


def _batch_size(num_rows: int) -> int:
    """A power of two: about a twentieth of the rows, between 32 and 256, and not more than there are."""
    wanted = min(max((num_rows // 20).bit_length() - 1, 5), 8)
    return 1 << min(wanted, num_rows.bit_length() - 1)


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _yaml(text: str) -> str:
    """The text as YAML: bare where that is safe, else in quotes."""
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*|\.{1,2}/[\w./-]+", text, re.ASCII)
    return text if plain and text.lower() not in ("true", "false", "null") else _text(text)
