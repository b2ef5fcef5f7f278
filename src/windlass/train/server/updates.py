"""One update: its pushes, its positions in the data, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.corpus.batches import DIGEST_BITS


@dataclass(frozen=True)
class ServerUpdate:
    """One change of the values on all servers.

    In synchronous mode it is a whole batch; in other modes it is one worker's part of a batch.
    """

    number: int
    """Sequence number, counted from the step of the checkpoint that the logs follow."""
    batch: int
    tasks: tuple[str, ...]
    """Tasks whose pushes are added up, in this order."""
    first: int
    until: int
    """Positions first .. until - 1 of the data."""
    part: int = 0
    parts: int = 1
    """Part `part` of `parts` of the batch; a whole batch is 0 of 1, however it was divided."""
    rate: float = 0.0
    shrink: float | None = None
    """Factor that clips the sum to the maximum norm; None if the worker has clipped it."""
    norm: float = 0.0
    loss: float = 0.0
    digest: int = 0
    stale: int = 0
    """Number of updates between the values it was computed from and itself."""
    train_s: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields that depend on the kind of task."""

    @property
    def positions(self) -> int:
        return self.until - self.first

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> ServerUpdate:
        return cls(**{**facts, "tasks": tuple(facts["tasks"])})


def digest_of(digests: Iterable[int]) -> int:
    """Combine digests into that of their union."""
    return int(sum(digests)) % (1 << DIGEST_BITS)
