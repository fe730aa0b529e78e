"""What somebody meant who wrote a key that does not exist.

In: the path of an unknown key. Out: the sentence after "Fix:". Tries, in this order: the same word written
differently, an older or foreign name, the same key in another section, a similar one, and else where free
values go.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from god_ray.spec.problem import Path, dotted
from god_ray.spec.schema import FREE, field_at, fields, section_at

# Names for the same thing in plain PyTorch, Lightning, transformers and Ray, and our own older ones.
OTHER_NAMES = {
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "num_steps": "steps",
    "total_steps": "steps",
    "batch": "batch_size",
    "global_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "num_workers": "workers",
    "num_replicas": "workers",
    "world_size": "workers",
    "min_workers": "workers.min",
    "max_workers": "workers.max",
    "num_cpus": "workers.cpus",
    "num_gpus": "workers.gpus",
    "resources_per_worker": "workers.cpus",
    "num_lanes": "lanes",
    "random_seed": "seed",
    "gradient_clip_val": "clip_norm",
    "max_grad_norm": "clip_norm",
    "grad_clip": "clip_norm",
    "clip_grad_norm": "clip_norm",
    "model": "recipe",
    "script": "recipe",
    "train_data": "data.train",
    "eval_data": "data.eval",
    "validation": "data.eval",
    "val": "data.eval",
    "test": "data.eval",
    "early_stopping": "stop_when",
    "hyperparameters": "config",
    "hparams": "config",
    "params": "config",
    "train_loop_config": "config",
    "save_every": "checkpoint.every_steps",
    "save_steps": "checkpoint.every_steps",
    "save_total_limit": "checkpoint.keep",
    "num_to_keep": "checkpoint.keep",
    "eval_every": "eval.every",
    "eval_steps": "eval.every",
    "max_failures": "failures.max",
    "max_restarts": "failures.max",
    "amp": "precision",
    "mixed_precision": "precision",
    "dtype": "precision",
    "output_dir": "storage",
    "storage_path": "storage",
    "run_name": "name",
    "experiment_name": "name",
    "pretrained": "init_from",
    "resume_from": "init_from",
    "deterministic": "determinism",
    "tune": "sweep",
    "num_trials": "sweep.trials",
    "num_samples": "sweep.trials",
    "max_concurrent_trials": "sweep.concurrent",
    "search_space": "sweep.search",
    "lr": "config.lr",
    "learning_rate": "config.lr",
    "weight_decay": "config.weight_decay",
    "optimizer": "config.optimizer",
    "dropout": "config.dropout",
}


def unknown_key(path: Path) -> str:
    """The fix for a key that does not exist."""
    *section, last = path
    word = str(last)
    siblings = list(getattr(section_at(tuple(section)), "model_fields", ()))
    every = [known for known, _ in fields()]
    plain = _plain(word)
    if plain in siblings:
        return f"did you mean {dotted((*section, plain))}?"
    if "." in word and _known(tuple(word.split("."))):
        return f"write it nested: {_nested(word.split('.'))}"
    if plain in OTHER_NAMES:
        return _meant(OTHER_NAMES[plain])
    elsewhere = [known for known in every if known[-1] == plain]
    if elsewhere:
        return " or ".join(_belongs(known) for known in elsewhere)
    if close := get_close_matches(plain, siblings, n=1, cutoff=0.65):
        return f"did you mean {dotted((*section, close[0]))}?"
    if close := get_close_matches(plain, [str(known[-1]) for known in every], n=1, cutoff=0.8):
        return " or ".join(f"did you mean {dotted(known)}?" for known in every if known[-1] == close[0])
    if not section:
        return f"remove it; values for the recipe go under config: config.{word}"
    return f"remove it; {dotted(tuple(section))} has {', '.join(siblings)}"


def _plain(word: str) -> str:
    """`num-epochs`, `numEpochs`, `NUM_EPOCHS` and `num epochs` as the spec would spell them."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word)
    return re.sub(r"[-\s]+", "_", snake.strip()).lower()


def _known(path: Path) -> bool:
    return field_at(path) is not None or (path[:1] == FREE and len(path) > 1)


def _belongs(path: Path) -> str:
    if len(path) == 1:
        return f"{path[0]} belongs at the top level"
    return f"{path[-1]} belongs in {dotted(path[:-1])}: write {_nested([str(part) for part in path])}"


def _meant(key: str) -> str:
    if key.startswith("config."):
        return f"values for the recipe go under config: write {_nested(key.split('.'))}"
    return f"did you mean {key}?"


def _nested(parts: list[str]) -> str:
    *sections, last = parts
    return "".join(f"{part}: {{" for part in sections) + f"{last}: ..." + "}" * len(sections)
