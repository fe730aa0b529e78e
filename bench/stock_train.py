"""The same training as a stock Ray Train + Ray Data script, as its documentation would have it written.

Run: python bench/stock_train.py DATA STEPS.jsonl [--epochs N] [--workers W] [--model small|large]. Rank
0 appends one line a step (unix seconds) to STEPS.jsonl, so that it can be compared with a ledger. Knows
nothing of god_ray.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from typing import Any

import ray
import ray.data
import ray.train
import recipe
import torch
from measure import BATCH_SIZE, FOLDER
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch.nn import functional


def train(config: dict[str, Any]) -> None:
    context = ray.train.get_context()
    model = prepare_model(recipe.network(config["widths"]))
    optimizer = recipe.optimizer(model.parameters())
    shard = ray.train.get_dataset_shard("train")
    step = 0
    with open(config["steps"] if context.get_world_rank() == 0 else "/dev/null", "a") as lines:
        for epoch in range(config["epochs"]):
            for batch in shard.iter_torch_batches(batch_size=BATCH_SIZE // context.get_world_size()):
                optimizer.zero_grad()
                functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
                optimizer.step()
                step += 1
                lines.write(json.dumps({"step": step, "epoch": epoch, "at": time.time()}) + "\n")
                lines.flush()
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = None
                if context.get_world_rank() == 0:
                    torch.save(model.state_dict(), f"{folder}/model.pt")
                    checkpoint = Checkpoint.from_directory(folder)
                ray.train.report({"epoch": epoch}, checkpoint=checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("steps")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", choices=["small", "large"], default="small")
    chosen = parser.parse_args()
    widths = recipe.SMALL if chosen.model == "small" else recipe.LARGE
    ray.init(address="local", num_cpus=chosen.workers + 1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as storage:
        TorchTrainer(
            train,
            train_loop_config={"widths": list(widths), "epochs": chosen.epochs, "steps": chosen.steps},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=chosen.workers),
            datasets={"train": ray.data.read_parquet(chosen.data)},
            run_config=RunConfig(
                storage_path=storage, worker_runtime_env={"env_vars": {"PYTHONPATH": str(FOLDER)}}
            ),
        ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
