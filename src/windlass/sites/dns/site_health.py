"""Who is well. Pure: probes and the time are given.

A site is left out after `fall` bad answers in a row and comes back after `rise` good ones: leaving is quick,
because clients wait; coming back is slow, because a site that fails again costs them twice. A site that is
drained gets no new clients; it is withdrawn when kept answers have run out and its drain time is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from windlass.spec.sites import Site, SiteCheck, Sites

State = Literal["well", "out", "draining", "withdrawn"]


@dataclass(frozen=True)
class Probe:
    """How a site answered one question."""

    good: bool
    took_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class SiteHealth:
    """What is known of one site. A new one is well until it is found otherwise: somebody must answer."""

    well: bool = True
    in_row: int = 0
    """Probes in a row that speak against `well`."""
    changed_at: float = 0.0
    drained_at: float | None = None
    took_s: float = 0.0
    why: str = ""


def after(standing: SiteHealth, probe: Probe, watch: SiteCheck, now: float) -> SiteHealth:
    """Return what is known after one more probe."""
    seen = replace(standing, took_s=probe.took_s, why=probe.why)
    if probe.good == standing.well:
        return replace(seen, in_row=0)
    in_row = standing.in_row + 1
    if in_row < (watch.fall if standing.well else watch.rise):
        return replace(seen, in_row=in_row)
    return replace(seen, well=probe.good, in_row=0, changed_at=now)


def drained(standing: SiteHealth, now: float | None) -> SiteHealth:
    """Begin to drain a site, or end it with None; a drain that is under way goes on."""
    if now is not None and standing.drained_at is not None:
        return standing
    return replace(standing, drained_at=now)


def state(standing: SiteHealth, sites: Sites, now: float) -> State:
    if standing.drained_at is not None:
        over = now - standing.drained_at >= sites.ttl + sites.drain
        return "withdrawn" if over else "draining"
    return "well" if standing.well else "out"


def answering(sites: Sites, known: Mapping[str, SiteHealth], now: float) -> Sequence[Site]:
    """Return the sites that clients may be sent to.

    Where none is well, those that still answer while they drain, and else all that are not withdrawn: a
    monitor that is wrong about everybody must not take the service away.
    """
    states = {site.name: state(known.get(site.name, SiteHealth()), sites, now) for site in sites.site}
    for wanted in (("well",), ("draining",), ("out",)):
        found = [site for site in sites.site if states[site.name] in wanted]
        found = [s for s in found if wanted != ("draining",) or known[s.name].well]
        if found:
            return found
    return ()
