"""Decides whether an iteration was the last. A pure function."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.train.hmm.checkpoints import Progressed


@dataclass(frozen=True)
class Ascent:
    """The outcome of an iteration."""

    state: Progressed
    gain: float | None
    """Gain of the iteration before this one, in nats per token; None after the first."""
    reason: str | None
    """Why this was the last iteration; None if it was not."""


def ascended(
    state: Progressed,
    *,
    objective: float,
    tokens: int,
    seconds: float,
    min_gain: float,
    time_s: float | None,
) -> Ascent:
    """Return the state after an iteration that began at `objective`."""
    gain = None if state.objective is None else (objective - state.objective) / tokens
    spent = state.train_s + seconds
    late = time_s is not None and spent + seconds > time_s
    flat = gain is not None and gain < min_gain
    reason = f"an iteration gained {gain:.2g} nats per token" if flat else "the time is up" if late else None
    return Ascent(Progressed(state.step + 1, spent, objective, converged=flat or late), gain, reason)
