"""The run spec: read, checked as a whole, with every fault at once and the origin of every value.

In: a YAML 1.2 file or a mapping, `--set` strings, Python values. Out: a frozen `RunSpec`. Imports neither
torch, ray nor pyarrow, and looks at neither data nor recipe. Failures are `SpecError`s, exit code 2, before
anything is created.
"""

from god_ray.spec.data import Data
from god_ray.spec.determinism import Determinism
from god_ray.spec.load import LoadedSpec, load
from god_ray.spec.problem import ABSENT, Problem
from god_ray.spec.progress import Checkpoint, Eval, KeepBest, StopWhen
from god_ray.spec.reference import reference_markdown
from god_ray.spec.resolved import resolved_yaml
from god_ray.spec.run import RunSpec
from god_ray.spec.sweep import Asha, Distribution, Sweep
from god_ray.spec.workers import Failures, Workers

__all__ = [
    "ABSENT",
    "Asha",
    "Checkpoint",
    "Data",
    "Determinism",
    "Distribution",
    "Eval",
    "Failures",
    "KeepBest",
    "LoadedSpec",
    "Problem",
    "RunSpec",
    "StopWhen",
    "Sweep",
    "Workers",
    "load",
    "reference_markdown",
    "resolved_yaml",
]
