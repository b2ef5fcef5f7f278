"""What one update is: which gradients, how fast, and what they were made of. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.corpus.batches import DIGEST_BITS
from windlass.spec.errors import WindlassError
from windlass.spec.run import Run
from windlass.train.optimize import rate_of
from windlass.train.server.dispenser import Done

EPSILON = 1e-6


@dataclass(frozen=True)
class Update:
    """One step of the optimizer, on all servers."""

    number: int
    """Updates before it, and itself."""
    batch: int
    tasks: tuple[str, ...]
    """Whose gradients are added up, in this order."""
    rate: float
    shrink: float | None
    """Factor that brings the sum to the largest norm; None where whoever computed it has done that."""
    norm: float
    loss: float
    digest: int
    stale: int
    """Updates that came between the weights it was computed from and itself."""
    train_s: float

    @classmethod
    def heard(cls, facts: Mapping[str, Any]) -> Update:
        return cls(**{**facts, "tasks": tuple(facts["tasks"])})


def drawn_up(done: Done, run: Run, *, step: int, square: float | None, train_s: float) -> Update:
    """Return the update that follows `step` others, of a batch whose parts are all there.

    `square` is that of the norm over all servers, None where one worker computed and clipped the whole batch.
    """
    stale = step - min(fact["version"] for fact in done.facts)
    norm = float(done.facts[0]["norm"]) if square is None else math.sqrt(square)
    most = run.job.train.clip or math.inf
    return Update(
        number=step + 1,
        batch=done.batch,
        tasks=done.tasks,
        rate=rate_of(run, step) / (1 + run.job.sync.damping * stale),
        shrink=None if square is None else min(1.0, most / (norm + EPSILON)),
        norm=norm,
        loss=sum(fact["loss"] for fact in done.facts),
        digest=digest_of(fact["digest"] for fact in done.facts),
        stale=stale,
        train_s=train_s,
    )


def digest_of(digests: Any) -> int:
    """Return the digest of all that some digests are of."""
    return int(sum(digests)) % (1 << DIGEST_BITS)


def check_finite(update: Update) -> None:
    """Refuse an update that would ruin the weights."""
    if math.isfinite(update.loss) and math.isfinite(update.norm):
        return
    raise WindlassError(
        f"step {update.number}: the loss is {update.loss}, its gradient {update.norm}",
        hint=f"lower [train] learning_rate (it was {update.rate:.3g}) or lengthen warmup_steps",
    )
