"""Which site to use, with a circuit breaker for each. Pure: health, time and random numbers are arguments.

Sites of a lower rank go first; within a rank, weights divide the calls (as in DNS SRV records, RFC 2782). A
site that failed `trip` times in a row is left out (the circuit opens), longer each time, and is then probed
by one call: if that succeeds all calls return, if not the circuit stays open. A site that sends Retry-After
is left out until then. Sites that are left out are tried last, but not never: a client with only such sites
tries them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from windlass.spec.protocol.backoff import Backoff


@dataclass(frozen=True)
class ServerSite:
    """A server, by its address. Lower ranks are preferred, weights divide the calls within one."""

    url: str
    rank: int = 0
    weight: float = 1.0


@dataclass(frozen=True)
class Circuit:
    """When a site is left out, and for how long."""

    trip: int = 2
    first_rest_s: float = 2.0
    max_rest_s: float = 60.0
    probe_s: float = 30.0
    """How long one call may probe a site before another call may."""


@dataclass(frozen=True)
class SiteMemory:
    """The remembered health of a site."""

    failures: int = 0
    """In a row."""
    rests_until: float = -math.inf
    probed_until: float = -math.inf
    busy_until: float = -math.inf


State = Literal["well", "probe", "busy", "resting"]


def as_sites(given: str | ServerSite | Sequence[str | ServerSite]) -> list[ServerSite]:
    """Read addresses; bare ones are preferred in the order in which they are given."""
    each = [given] if isinstance(given, str | ServerSite) else list(given)
    made = [
        site if isinstance(site, ServerSite) else ServerSite(site, rank) for rank, site in enumerate(each)
    ]
    return [replace(site, url=site.url.rstrip("/")) for site in made]


def state(health: SiteMemory, circuit: Circuit, now: float) -> State:
    """Return whether a site is usable now; "probe" is for one caller at a time."""
    if health.failures >= circuit.trip:
        free = now >= health.rests_until and now >= health.probed_until
        return "probe" if free else "resting"
    return "busy" if now < health.busy_until else "well"


def order(
    sites: Sequence[ServerSite],
    known: Mapping[str, SiteMemory],
    circuit: Circuit,
    *,
    now: float,
    draws: Sequence[float],
) -> list[ServerSite]:
    """Return the sites in the order in which to try them; `draws` has a number from [0, 1) for each."""

    def place(pair: tuple[ServerSite, float]) -> tuple[int, float, int, float]:
        site, drawn = pair
        health = known.get(site.url, SiteMemory())
        turn = -math.log1p(-drawn) / site.weight if site.weight > 0 else math.inf
        match state(health, circuit, now):
            case "well" | "probe":
                return 0, 0.0, site.rank, turn
            case "busy":
                return 1, health.busy_until, site.rank, turn
            case "resting":
                return 2, max(health.rests_until, health.probed_until), site.rank, turn

    return [site for site, _ in sorted(zip(sites, draws, strict=True), key=place)]


def call_started(health: SiteMemory, circuit: Circuit, now: float) -> SiteMemory:
    """Record that a call has started; if it is a probe, it is the only one for a while."""
    if health.failures < circuit.trip:
        return health
    return replace(health, probed_until=now + circuit.probe_s)


def answered(health: SiteMemory) -> SiteMemory:
    """Record a success: the circuit closes."""
    return SiteMemory() if health != SiteMemory() else health


def failed(health: SiteMemory, circuit: Circuit, now: float) -> SiteMemory:
    """Count a failure; after enough of them, or after a failed probe, the circuit opens."""
    failures = health.failures + 1
    if failures < circuit.trip:
        return replace(health, failures=failures)
    backoff = Backoff(circuit.first_rest_s, circuit.max_rest_s)
    rest_s = backoff.wait_s(failures - circuit.trip + 1)
    return replace(health, failures=failures, rests_until=now + rest_s, probed_until=-math.inf)


def busy(health: SiteMemory, now: float, for_s: float) -> SiteMemory:
    """Record that a site works, but sent Retry-After."""
    return SiteMemory(busy_until=now + for_s)
