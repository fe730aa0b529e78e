"""NumPy's numbers among an optimizer's options are kept as what they are: a resumed run is the same run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from small_runs import RECIPE, STEPS, project, trained

from god_ray import api
from god_ray.checkpoint.store import CheckpointStore
from god_ray.storage.local import LocalStore

# The options steer the training: each step's rate is drawn from them, and they change with every step.
NUMPY = RECIPE.replace("import torch\n", "import numpy as np\nimport torch\n", 1).replace(
    "    return god_ray",
    """\
    optimizer.param_groups[0]["rate"], optimizer.param_groups[0]["count"] = np.float64(0.1), np.int64(0)

    def drawn(optimizer, *_):
        group = optimizer.param_groups[0]
        assert (type(group["rate"]), type(group["count"])) == (np.float64, np.int64)
        group["rate"], group["count"] = group["rate"] * np.float64(0.9), group["count"] + np.int64(1)
        group["lr"] = float(group["rate"]) / int(group["count"])

    optimizer.register_step_pre_hook(drawn)
    return god_ray""",
)


def test_a_resumed_run_goes_on_with_numpys_numbers(tmp_path: Path) -> None:
    run = trained(project(tmp_path, NUMPY), tmp_path / "runs", "a")
    digest = run.read()["result"]["digest"]
    snapshot, _ = CheckpointStore(LocalStore(run.checkpoints), 0).load(STEPS)
    options = snapshot.scalars["optimizer"]["groups"][0]["options"]  # type: ignore[call-overload,index]
    assert options["count"] == {"$": "numpy", "v": ["<i8", np.int64(STEPS).tobytes().hex()]}
    shutil.rmtree(run.checkpoints / f"step-{STEPS:08d}")
    run.update(state="RUNNING", result=None)
    again = api.resume("a", tmp_path / "runs", debug=True)
    assert (again.state, again.digest) == ("SUCCEEDED", digest)
