"""How many replicas a version should have: a pure function of the signals.

Growth is immediate, because requests wait. Shrinking waits until the replica was not needed for `calm`
seconds, because loading takes long and dropping a moment: at least `calm` seconds pass between a growth and a
shrink below it, which bounds how often the number goes up and down. Calm starts when all replicas are ready:
a replica dropped while it starts would have cost the most and served no request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from windlass.spec.scale import Scale

SHRINK_LOAD = 0.8
"""A replica is dropped only if the others are then loaded to at most this share of the target."""


@dataclass(frozen=True)
class ScaleSignals:
    """The load signals of a version at one moment."""

    replicas: int
    """The desired number so far; starting replicas count."""
    ready: int
    in_flight: int
    """Requests under way, waiting ones included."""
    refused: int = 0
    """Requests refused since the last report: load that is not visible otherwise."""
    queue_s: float = 0.0
    """How long a new request would wait."""
    first_token_s: float = 0.0
    """95th percentile of the time to first token of recent answers."""


@dataclass(frozen=True)
class Past:
    """The memory of decisions: how many replicas were needed when, and when slowness last added one."""

    needed: tuple[tuple[float, int], ...] = ()
    """Falling numbers with rising times: the first is the maximum needed within `calm`."""
    slow_at: float = -math.inf
    replicas: int = -1
    """The last decision; a larger number was set by someone else, and stays for `calm` without need."""


@dataclass(frozen=True)
class ScaleDecision:
    """The number of replicas, the reason, and what to remember."""

    replicas: int
    past: Past
    why: str = ""


def decide(
    scale: Scale, past: Past, seen: ScaleSignals, *, slots: int, room: int, now: float
) -> ScaleDecision:
    """Return how many replicas should run now; `room` is the maximum that fits.

    Running replicas are never stopped for lack of room: free memory changes by the second.
    """
    target = scale.load * slots
    demand = seen.in_flight + seen.refused
    for_growth = math.ceil(demand / target)
    for_staying = math.ceil(demand / (target * SHRINK_LOAD))
    why = f"{demand} requests at {target:.0f} each"
    slow = _slowness(scale, past, seen, now)
    if slow and for_growth <= seen.replicas:
        for_growth, why, past = seen.replicas + 1, slow, replace(past, slow_at=now)
    needed = max(scale.min_replicas, for_growth, min(for_staying, seen.replicas))
    is_settled = seen.ready >= seen.replicas <= past.replicas
    noted = needed if is_settled else max(needed, seen.replicas)
    history = _remember(past.needed, noted, now, scale.calm)
    if needed > seen.replicas:
        limit = max(scale.min_replicas, seen.replicas, min(room, scale.max_replicas or room))
        number = min(limit, needed)
    else:
        number, why = min(seen.replicas, history[0][1]), f"calm for {scale.calm:.0f} s"
    return ScaleDecision(number, Past(history, past.slow_at, number), why if number != seen.replicas else "")


def _slowness(scale: Scale, past: Past, seen: ScaleSignals, now: float) -> str:
    """Return why answers are slow, if another replica would help, or "".

    It would not help if requests do not queue, and not yet if a replica is starting already.
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
    """Keep what can still be the maximum within `calm_s`: an older, smaller number never will be."""
    larger = tuple((at, n) for at, n in needed if n > number and now - at < calm_s)
    return (*larger, (now, number))
