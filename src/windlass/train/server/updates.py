"""What one update is: whose pushes, of which positions, and what came of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.corpus.batches import DIGEST_BITS


@dataclass(frozen=True)
class ServerUpdate:
    """One change of what the servers hold, on all of them.

    In synchronous mode it is a whole batch; in the others one part of a batch, as one worker pushed it.
    """

    number: int
    """Updates before it, and itself: counted from the step of the checkpoint that the logs follow."""
    batch: int
    tasks: tuple[str, ...]
    """Whose pushes are added up, in this order."""
    first: int
    until: int
    """The positions that it was made of."""
    part: int = 0
    parts: int = 1
    """Which of how many parts of the batch it is; a whole batch is one of one, however it was divided."""
    rate: float = 0.0
    shrink: float | None = None
    """Factor that brings the sum to the largest norm; None where whoever computed it has done that."""
    norm: float = 0.0
    loss: float = 0.0
    digest: int = 0
    stale: int = 0
    """Updates that came between the values it was computed from and itself."""
    train_s: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)
    """What only one kind of course knows of it."""

    @property
    def positions(self) -> int:
        return self.until - self.first

    @classmethod
    def heard(cls, facts: Mapping[str, Any]) -> ServerUpdate:
        return cls(**{**facts, "tasks": tuple(facts["tasks"])})


def digest_of(digests: Iterable[int]) -> int:
    """Return the digest of all that some digests are of."""
    return int(sum(digests)) % (1 << DIGEST_BITS)
