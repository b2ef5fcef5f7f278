"""What the processes of a run tell each other of a step: a short row of numbers, added up over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windlass.corpus.batches import DIGEST_BITS

HALF_BITS = DIGEST_BITS // 2


@dataclass(frozen=True)
class StepResult:
    """What one step did, and what all processes agreed on in it."""

    loss: float
    gradient_norm: float
    rate: float
    seconds: float
    agreed: bool = True
    """Whether all replicas spoke to each other; only then they may act together."""
    stop: bool = False
    """Whether any process was asked to stop."""
    leave: bool = False
    """Whether any process was asked to part here, for others to come or to go."""
    request: int = 0
    """The newest request for other settings, 0 if there is none."""
    written: bool = False
    """Whether the bytes of a checkpoint that is being saved have been written by all."""
    due: bool = False
    """Whether the last checkpoint is so long ago that it is time for another."""
    forgets: bool = False
    """Whether it is time to keep a border in memory, twice."""
    digest: int = 0
    """Of the positions that all replicas read since they last agreed, by corpus.batches.digest_of."""


@dataclass(frozen=True)
class RankReport:
    """What one process tells; those that know nothing of something tell nothing of it."""

    loss: float
    train_s: float
    digest: int = 0
    stop: bool = False
    leave: bool = False
    request: int = 0
    written: bool = False
    due: bool = False
    forgets: bool = False

    def numbers(self) -> list[float]:
        """Return the row to be added up; its last number counts the processes."""
        flags = (self.stop, self.leave, self.written, self.due, self.forgets)
        return [self.loss, self.train_s, float(self.request), *halves(self.digest), *map(float, flags), 1.0]


@dataclass(frozen=True)
class Sum:
    """The rows of some processes, added up."""

    loss: float
    train_s: float
    """Of the mean process."""
    facts: StepResult


def reduced(row: Sequence[float], *, agreed: bool) -> Sum:
    """Read a sum of rows; only where all replicas added up theirs does it say what they may do together."""
    loss, train_s, request, high, low, stops, leaves, written, due, forgets, members = row
    facts = StepResult(
        loss=loss,
        gradient_norm=0.0,
        rate=0.0,
        seconds=0.0,
        agreed=agreed,
        stop=agreed and stops > 0,
        leave=agreed and leaves > 0,
        request=int(request),
        written=agreed and written == members,
        due=agreed and due > 0,
        forgets=agreed and forgets > 0,
        digest=joined(high, low),
    )
    return Sum(loss, train_s / members, facts)


def halves(digest: int) -> tuple[float, float]:
    """Divide a digest into numbers that any number of processes can add up exactly in float64."""
    return float(digest >> HALF_BITS), float(digest & ((1 << HALF_BITS) - 1))


def joined(high: float, low: float) -> int:
    """Return the digest whose added-up halves these are."""
    return ((int(high) << HALF_BITS) + int(low)) % (1 << DIGEST_BITS)
