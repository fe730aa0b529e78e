"""The checksums of whole epochs are those of the definition, leaf by leaf."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from god_ray.plan import DataPlan, Manifest, checksum, epoch_checksum, row_hash
from god_ray.plan import expected as module
from god_ray.plan.expected import step_checksums


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch_size=st.integers(1, 30),
    lanes=st.integers(1, 5),
    shuffle=st.sampled_from(["full", "window", "none"]),
    epoch=st.integers(0, 2),
    chunk=st.integers(1, 50),
)
def test_they_are_what_the_definition_gives(sizes, batch_size, lanes, shuffle, epoch, chunk) -> None:
    manifest = Manifest.build(["a"], [(0, group, rows) for group, rows in enumerate(sizes)], "")
    plan = DataPlan(manifest, min(batch_size, manifest.num_rows), lanes, 7, shuffle, 2, 2)
    order = plan.epoch(epoch)
    defined = [
        sum(checksum(row_hash(order.row_numbers(lane, step))) for lane in range(lanes)) % 2**64
        for step in range(plan.steps_per_epoch)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_ROWS", chunk)
        for num_steps in range(plan.steps_per_epoch + 1):
            assert step_checksums(order, num_steps).tolist() == defined[:num_steps]
    whole = int(np.sum(step_checksums(order, plan.steps_per_epoch), dtype=np.uint64))
    assert whole == epoch_checksum(manifest.num_rows)


def test_more_steps_than_an_epoch_has_are_refused() -> None:
    plan = DataPlan(Manifest.build(["a"], [(0, 0, 10)], ""), 4, 2, 0, "full", 1, 1)
    with pytest.raises(IndexError, match="4 steps of an epoch of 3"):
        step_checksums(plan.epoch(0), 4)
