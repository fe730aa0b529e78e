"""A run of two Ray workers in a bucket: each writes its share, one is killed, the bits stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import small_project
from small_project import god_ray
from waiting import until

from god_ray.storage.store import open_store

SLOW = ["--set", "epochs=60", "--set", "checkpoint.every_steps=20", "--set", "determinism.digest_every=20"]


def status(storage: str, cwd: Path) -> dict[str, object]:
    done = god_ray("status", "r", "--storage", storage, "--json", cwd=cwd)
    return dict(json.loads(done.stdout)) if done.stdout.strip() else {"workers": [], "step": 0}


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_a_worker_is_killed_and_the_bits_stay(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = small_project.write(tmp_path / "project")
    gate = tmp_path / "gate"
    recipe = (tmp_path / "project" / "recipe.py").read_text()
    held = recipe.replace(
        "    def loss(model, batch):\n",
        "    def loss(model, batch):\n"
        f"        while model.training and loss.calls == 200 and not os.path.exists({str(gate)!r}):\n"
        "            time.sleep(0.01)\n"
        "        loss.calls += 1\n",
    ).replace("    return god_ray.Recipe", "    loss.calls = 0\n    return god_ray.Recipe")
    (tmp_path / "project" / "recipe.py").write_text(held.replace("import os\n", "import os\nimport time\n"))
    command = [sys.executable, "-m", "god_ray", "train", str(spec), "--name", "r", "--storage", s3, *SLOW]
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    try:
        saved = open_store(f"{s3}/r/checkpoints")
        until(lambda: any("manifest" in name for name in saved.list()), "the first checkpoint")
        workers = status(s3, tmp_path)["workers"]
        assert isinstance(workers, list)
        os.kill(workers[1]["pid"], signal.SIGKILL)
        gate.touch()
        assert process.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
        log.close()
    told = status(s3, tmp_path)
    assert (told["state"], told["recoveries"]) == ("SUCCEEDED", 1)
    names = [name.rpartition("/")[2] for name in saved.list(f"step-{told['step']:08d}")]
    assert names == [
        "manifest.json",
        "model-1of2.2.safetensors",
        "model-2of2.2.safetensors",
        "optimizer-1of2.2.safetensors",
        "optimizer-2of2.2.safetensors",
        "state.2.json",
    ]
    alone = god_ray(
        "train", spec, "--name", "d", "--storage", "runs", "--debug", "--json", *SLOW, cwd=tmp_path
    )
    assert json.loads(alone.stdout)["digest"] == told["last_digest"]
    verified = god_ray("verify", "r", "--storage", s3, "--against", tmp_path / "runs" / "d", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
