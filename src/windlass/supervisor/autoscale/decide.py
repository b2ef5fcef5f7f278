"""How many replicas a version should have: a pure function of what was seen.

Growing is immediate, because requests wait. Shrinking waits until nothing in the last `calm` seconds would
have needed the replica, because it takes long to load and a moment to drop: between a growth and a shrink
below it at least `calm` seconds pass, which bounds how often the number can go up and down. Calm begins when
all replicas are ready: who is let go while it starts has cost the most and helped nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from windlass.spec.scale import Scale

SHRINK_LOAD = 0.8
"""Who is to leave must be missed by nobody: those that stay are loaded to at most this part of the target."""


@dataclass(frozen=True)
class ScaleSignals:
    """What is known of a version at one moment."""

    replicas: int
    """How many are wanted so far; those that are starting count."""
    ready: int
    in_flight: int
    """Requests under way, those that wait included."""
    refused: int = 0
    """Requests that were sent away since the last look: load that cannot be seen otherwise."""
    queue_s: float = 0.0
    """How long a request that comes now would wait."""
    first_token_s: float = 0.0
    """The time that 19 of 20 recent answers took to begin."""


@dataclass(frozen=True)
class Past:
    """What a decision remembers: how many replicas were needed when, and when slowness last added one."""

    needed: tuple[tuple[float, int], ...] = ()
    """Falling numbers with rising times: the first is the most that was needed within `calm`."""
    slow_at: float = -math.inf
    replicas: int = -1
    """What was decided; more is somebody else's wish, and stays until `calm` has passed without need."""


@dataclass(frozen=True)
class ScaleDecision:
    """How many replicas to have, why, and what to remember."""

    replicas: int
    past: Past
    why: str = ""


def decide(
    scale: Scale, past: Past, seen: ScaleSignals, *, slots: int, room: int, now: float
) -> ScaleDecision:
    """Return how many replicas should run now; `room` is the most that may be started.

    What runs is never ended for want of room: free memory comes and goes by the second.
    """
    target = scale.load * slots
    demand = seen.in_flight + seen.refused
    for_growth = math.ceil(demand / target)
    for_staying = math.ceil(demand / (target * SHRINK_LOAD))
    why = f"{demand} requests at {target:.0f} each"
    slow = _slowness(scale, past, seen, now)
    if slow and for_growth <= seen.replicas:
        for_growth, why, past = seen.replicas + 1, slow, replace(past, slow_at=now)
    needed = max(scale.least, for_growth, min(for_staying, seen.replicas))
    is_settled = seen.ready >= seen.replicas <= past.replicas
    noted = needed if is_settled else max(needed, seen.replicas)
    history = _remember(past.needed, noted, now, scale.calm)
    if needed > seen.replicas:
        most = max(scale.least, seen.replicas, min(room, scale.most or room))
        number = min(most, needed)
    else:
        number, why = min(seen.replicas, history[0][1]), f"calm for {scale.calm:.0f} s"
    return ScaleDecision(number, Past(history, past.slow_at, number), why if number != seen.replicas else "")


def _slowness(scale: Scale, past: Past, seen: ScaleSignals, now: float) -> str:
    """Say why answers are slow in a way that another replica helps against, or "".

    A request that is slow alone is as slow beside another replica; and one that is starting is on its way.
    """
    if seen.ready < seen.replicas or seen.in_flight <= seen.ready or now - past.slow_at < scale.cooldown:
        return ""
    if seen.queue_s > scale.queue_time:
        return f"requests wait {seen.queue_s:.1f} s"
    if scale.first_token is not None and seen.first_token_s > scale.first_token:
        return f"answers begin after {seen.first_token_s:.1f} s"
    return ""


def _remember(
    needed: tuple[tuple[float, int], ...], number: int, now: float, calm_s: float
) -> tuple[tuple[float, int], ...]:
    """Keep what can still be the most within `calm_s`: an older, smaller number never will be."""
    larger = tuple((at, n) for at, n in needed if n > number and now - at < calm_s)
    return (*larger, (now, number))
