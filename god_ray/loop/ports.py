"""What the loop needs from the world, each as small as it can be.

The runtime fills these: with files and Ray for the leader of a generation, with nothing for the other
workers, with nothing but files for `--debug`. The loop therefore has no branch on rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from god_ray.checkpoint.state import View
from god_ray.loop.request import Request
from god_ray.plan import Cursor
from god_ray.sync.exchange import LeafTensors, Reduced


class LeafData(Protocol):
    """One lane's rows of one step: `batch` by column, `rows` their global numbers, and their checksum."""

    batch: dict[str, Tensor]
    rows: Any
    checksum: int


class Feed(Protocol):
    counters: dict[str, Any]
    """Who has read how much, for the log."""

    def start(self, cursor: Cursor, lanes: range) -> None: ...

    def leaf(self, cursor: Cursor, lane: int) -> LeafData | None: ...

    def close(self) -> None: ...


class Exchange(Protocol):
    ranges: list[tuple[int, int]]

    def run(
        self,
        leaf: Callable[[int], LeafTensors | None],
        take_notes: Callable[[Any], None],
        rows: Sequence[int],
    ) -> Reduced: ...


class Journal(Protocol):
    """The ledger. Only the leader's is real."""

    def publish(self, record: Mapping[str, Any]) -> object: ...

    def seal(self) -> None: ...

    def close(self) -> None: ...


class Checkpoints(Protocol):
    """Durable state, of which every worker saves its share. `save` copies and returns; it is written after
    `publish(step)`; `written` is the newest that is whole, for the leader only. `settle` returns when this
    worker's share is written, `drain` when all are: it waits for the others, so each must have settled first.
    `prepare`, before the first save, makes that one as quick as the others. `prepare` and `save` are called
    by the thread of `reading`, and beside a running `save` nothing but `written`.
    """

    def prepare(self, view: View) -> None: ...

    def save(self, step: int, view: View, meta: Mapping[str, Any]) -> None: ...

    def publish(self, step: int) -> None: ...

    def written(self) -> int | None: ...

    def settle(self) -> None: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


class Control(Protocol):
    def poll(self) -> Request | None: ...

    def close(self) -> None: ...


class Reporter(Protocol):
    """Tells Ray Train about a durable checkpoint; every worker calls it for the same step."""

    def report(self, step: int, metrics: Mapping[str, Any]) -> None: ...
