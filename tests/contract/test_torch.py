"""What god_ray relies on in torch beyond its documentation: fails first when torch changes."""

from __future__ import annotations

import inspect

from torch.distributed import Reducer
from torch.nn.parallel import DistributedDataParallel


def test_the_reducer_can_rebuild_its_buckets_and_say_whether_it_is_done() -> None:
    """god_ray.sync.ddp: a tail without rows must not leave a collective to the others."""
    assert callable(Reducer._rebuild_buckets)
    assert callable(Reducer._check_reducer_finalized)


def test_ddp_can_be_told_not_to_broadcast_buffers() -> None:
    names = set(inspect.signature(DistributedDataParallel).parameters)
    assert names & {"forward_sync_buffers", "broadcast_buffers"}
