"""The whole data position of a run: three integers, the same for any number of workers.

In: nothing. Out: `Cursor`. It must not know rows, lanes or workers: where a step's rows are is `order.py`.
A wrong cursor shows as a gap or a repeat in the ledger's step numbers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Cursor:
    """The NEXT step to do. All three count from 0, so after n committed steps `step == n`.

    A cursor never says "epoch exhausted": behind the last step of epoch e it is step 0 of epoch e + 1.
    """

    epoch: int
    step_in_epoch: int
    step: int
