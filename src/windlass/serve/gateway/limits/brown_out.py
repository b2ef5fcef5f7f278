"""Brown-out: how far the service reduces its work under overload, level by level.

    level 1   requests begin to wait                    no shadow copies
    level 2   some requests are refused                 one answer per request, no logprob alternatives, and
                                                        a quarter of the default answer length
    level 3   priority 0 and above fill the engines     no requests with a priority below 0
    level 4   priorities above 0 fill the engines       no requests with a priority of 0 or below

A class is refused only if more important classes use the whole capacity, so no level leaves engines idle. The
level rises at once and falls by one after a calm time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from windlass.spec.limits import BrownOut

DECAY_S = 2.0
"""Time constant over which requests are counted."""
MIN_REQUESTS = 2.0
"""With fewer recent requests, their shares mean nothing."""


@dataclass(frozen=True)
class Pressure:
    """Demand compared with capacity."""

    wait: float = 0.0
    """The wait of the next request, as a share of the maximum wait."""
    refused: float = 0.0
    """The share of recent requests that were refused for lack of capacity."""
    memory: float = 0.0
    """The share of the engines' KV cache that running requests hold."""
    firm: float = 0.0
    """Requests of priority 0 and above, per admitted request."""
    urgent: float = 0.0
    """Requests above priority 0, per admitted request."""


@dataclass(frozen=True)
class BrownOutState:
    """The current level, and since when there has been no cause for it."""

    level: int = 0
    calm_since: float | None = None


def decide(state: BrownOutState, pressure: Pressure, policy: BrownOut, now: float) -> BrownOutState:
    """Return the next state."""
    cause = cause_of(pressure, policy)
    if cause >= state.level:
        return BrownOutState(cause)
    if state.calm_since is None:
        return BrownOutState(state.level, now)
    if now - state.calm_since < policy.calm:
        return state
    return BrownOutState(state.level - 1, now)


def cause_of(pressure: Pressure, policy: BrownOut) -> int:
    """Return the level that the pressure calls for."""
    if pressure.refused > policy.refused:
        return 4 if pressure.urgent >= 1 else 3 if pressure.firm >= 1 else 2
    return int(pressure.wait >= policy.wait or pressure.memory >= policy.memory)


@dataclass
class RecentRequests:
    """Counts of recent requests, with exponential decay."""

    arrived: float = 0.0
    firm: float = 0.0
    urgent: float = 0.0
    admitted: float = 0.0
    refused: float = 0.0
    _at: float = field(default=0.0, repr=False)

    def count(self, priority: int, now: float, *, admitted: bool = False, refused: bool = False) -> None:
        self._fade(now)
        self.arrived += 1
        self.firm += priority >= 0
        self.urgent += priority > 0
        self.admitted += admitted
        self.refused += refused

    def pressure(self, now: float, *, wait: float, memory: float = 0.0) -> Pressure:
        self._fade(now)
        if self.arrived < MIN_REQUESTS:
            return Pressure(wait, memory=memory)
        admitted = max(self.admitted, 1.0)
        return Pressure(
            wait, self.refused / self.arrived, memory, self.firm / admitted, self.urgent / admitted
        )

    def _fade(self, now: float) -> None:
        kept = math.exp((self._at - now) / DECAY_S)
        self._at = now
        self.arrived *= kept
        self.firm *= kept
        self.urgent *= kept
        self.admitted *= kept
        self.refused *= kept
