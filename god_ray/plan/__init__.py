"""The data plan: manifest -> epoch order -> streams -> batches, the cursor, lanes -> workers, the tree.

Pure functions of their arguments, numpy only: no torch, no Ray, no Arrow, no file, no clock. Everything that
decides which row is used when, and in which order gradients are added, is in this room.
"""

from god_ray.plan.cursor import Cursor
from god_ray.plan.lanes import worker_lanes
from god_ray.plan.manifest import MAX_FRAGMENT_ROWS, Manifest
from god_ray.plan.order import DataPlan, EpochPlan, Shuffle
from god_ray.plan.rows import checksum, epoch_checksum, row_hash
from god_ray.plan.tree import split, subtrees
from god_ray.plan.windows import Segment, Window, window_permutation

__all__ = [
    "MAX_FRAGMENT_ROWS",
    "Cursor",
    "DataPlan",
    "EpochPlan",
    "Manifest",
    "Segment",
    "Shuffle",
    "Window",
    "checksum",
    "epoch_checksum",
    "row_hash",
    "split",
    "subtrees",
    "window_permutation",
    "worker_lanes",
]
