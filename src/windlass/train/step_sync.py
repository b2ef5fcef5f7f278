"""The per-step all-reduce: each rank contributes a short row of numbers, and all get the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windlass.corpus.batches import DIGEST_BITS

HALF_BITS = DIGEST_BITS // 2


@dataclass(frozen=True)
class StepResult:
    """The result of one step, with the requests that all processes act on together."""

    loss: float
    gradient_norm: float
    rate: float
    seconds: float
    agreed: bool = True
    """True if all replicas took part in the all-reduce; only then may they act together."""
    stop: bool = False
    """True if any process must stop."""
    drain: bool = False
    """True if any process must leave the loop here, for a new generation."""
    request: int = 0
    """Number of the newest settings request, 0 if there is none."""
    written: bool = False
    """True if all ranks have written their shard of the checkpoint in progress."""
    due: bool = False
    """True if a checkpoint is due by the clock."""
    memory_save_due: bool = False
    """True if it is time to copy the state to peer memory."""
    digest: int = 0
    """Digest of the positions that all replicas read since their last sync (corpus.batches.digest_of)."""


@dataclass(frozen=True)
class RankReport:
    """One rank's row for the per-step all-reduce. Unknown values are 0."""

    loss: float
    train_s: float
    digest: int = 0
    stop: bool = False
    drain: bool = False
    request: int = 0
    written: bool = False
    due: bool = False
    memory_save_due: bool = False

    def numbers(self) -> list[float]:
        """Return the row to sum; its last number counts the processes."""
        flags = (self.stop, self.drain, self.written, self.due, self.memory_save_due)
        return [self.loss, self.train_s, float(self.request), *halves(self.digest), *map(float, flags), 1.0]


@dataclass(frozen=True)
class Sum:
    """The sum of the rows."""

    loss: float
    train_s: float
    """Mean over the processes."""
    facts: StepResult


def reduced(row: Sequence[float], *, agreed: bool) -> Sum:
    """Decode a sum of rows; requests count only if all replicas took part (`agreed`)."""
    loss, train_s, request, high, low, stops, drains, written, due, memory_save_due, members = row
    facts = StepResult(
        loss=loss,
        gradient_norm=0.0,
        rate=0.0,
        seconds=0.0,
        agreed=agreed,
        stop=agreed and stops > 0,
        drain=agreed and drains > 0,
        request=int(request),
        written=agreed and written == members,
        due=agreed and due > 0,
        memory_save_due=agreed and memory_save_due > 0,
        digest=joined(high, low),
    )
    return Sum(loss, train_s / members, facts)


def halves(digest: int) -> tuple[float, float]:
    """Split a digest into two numbers whose sums over many processes are exact in float64."""
    return float(digest >> HALF_BITS), float(digest & ((1 << HALF_BITS) - 1))


def joined(high: float, low: float) -> int:
    """Return the digest of summed halves."""
    return ((int(high) << HALF_BITS) + int(low)) % (1 << DIGEST_BITS)
