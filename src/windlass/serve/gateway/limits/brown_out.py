"""How much less is done when too much is asked for, step by step, and when it is done again.

    level 1   requests begin to wait            no copies in the shadow
    level 2   some find no room                 one answer a request, no alternatives beside tokens, and a
                                                quarter of the usual length where none was asked for
    level 3   those of priority 0 would fill    nothing of a priority below 0
              the engines alone
    level 4   those above 0 would, alone        nothing of a priority of 0 or below

A class is refused altogether only where more important ones take all there is, so no level leaves engines
idle. Up at once, down one level after a calm time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from windlass.spec.limits import BrownOut

MEMORY_S = 2.0
"""Over which requests are counted."""
FEWEST = 2.0
"""Requests lately, before shares of them mean anything."""


@dataclass(frozen=True)
class Pressure:
    """What is asked for, against what can be done."""

    wait: float = 0.0
    """How long the next request would wait, as a share of what may be waited."""
    refused: float = 0.0
    """The share of requests that found no room lately."""
    memory: float = 0.0
    """The share of the engines' memory that running requests hold."""
    firm: float = 0.0
    """Requests of priority 0 and above, for each one that is let in."""
    urgent: float = 0.0
    """Requests above priority 0, for each one that is let in."""


@dataclass(frozen=True)
class Rung:
    """The level in force, and since when there has been no cause for it."""

    level: int = 0
    calm_since: float | None = None


def decide(rung: Rung, pressure: Pressure, policy: BrownOut, now: float) -> Rung:
    """Return the level from now on."""
    cause = cause_of(pressure, policy)
    if cause >= rung.level:
        return Rung(cause)
    if rung.calm_since is None:
        return Rung(rung.level, now)
    if now - rung.calm_since < policy.calm:
        return rung
    return Rung(rung.level - 1, now)


def cause_of(pressure: Pressure, policy: BrownOut) -> int:
    """Return the level that there is a cause for right now."""
    if pressure.refused > policy.refused:
        return 4 if pressure.urgent >= 1 else 3 if pressure.firm >= 1 else 2
    return int(pressure.wait >= policy.wait or pressure.memory >= policy.memory)


@dataclass
class Lately:
    """Requests of the last seconds, older ones counting less."""

    came: float = 0.0
    firm: float = 0.0
    urgent: float = 0.0
    let_in: float = 0.0
    no_room: float = 0.0
    _at: float = field(default=0.0, repr=False)

    def count(self, priority: int, now: float, *, let_in: bool = False, no_room: bool = False) -> None:
        self._fade(now)
        self.came += 1
        self.firm += priority >= 0
        self.urgent += priority > 0
        self.let_in += let_in
        self.no_room += no_room

    def pressure(self, now: float, *, wait: float, memory: float = 0.0) -> Pressure:
        self._fade(now)
        if self.came < FEWEST:
            return Pressure(wait, memory=memory)
        let_in = max(self.let_in, 1.0)
        return Pressure(wait, self.no_room / self.came, memory, self.firm / let_in, self.urgent / let_in)

    def _fade(self, now: float) -> None:
        kept = math.exp((self._at - now) / MEMORY_S)
        self._at = now
        self.came *= kept
        self.firm *= kept
        self.urgent *= kept
        self.let_in *= kept
        self.no_room *= kept
