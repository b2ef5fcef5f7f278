"""How far an iteration has come, and whether it was the last. A pure decision."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.train.hmm.checkpoints import Progressed


@dataclass(frozen=True)
class Ascent:
    """What an iteration came to."""

    state: Progressed
    gain: float | None
    """What the iteration before it gained, in nats a token; None after the first."""
    reason: str | None
    """Why it was the last; None where it was not."""


def ascended(
    state: Progressed,
    *,
    objective: float,
    tokens: int,
    seconds: float,
    min_gain: float,
    time_s: float | None,
) -> Ascent:
    """Return where a run stands after another iteration, which began at `objective`."""
    gain = None if state.objective is None else (objective - state.objective) / tokens
    spent = state.train_s + seconds
    late = time_s is not None and spent + seconds > time_s
    flat = gain is not None and gain < min_gain
    reason = f"an iteration gained {gain:.2g} nats a token" if flat else "the time is over" if late else None
    return Ascent(Progressed(state.step + 1, spent, objective, converged=flat or late), gain, reason)
