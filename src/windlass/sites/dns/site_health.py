"""Decides which sites are healthy. Pure: probes and the time are given.

A site is removed after `fall` failed probes in a row and added again after `rise` good ones: removal is fast,
because clients wait; return is slow, because a site that fails again costs them twice. A draining site gets
no new clients; it is withdrawn once cached answers have expired and its drain time is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from windlass.spec.sites import Site, SiteCheck, Sites

State = Literal["well", "out", "draining", "withdrawn"]


@dataclass(frozen=True)
class Probe:
    """The result of one probe of a site."""

    good: bool
    took_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class SiteHealth:
    """The health of one site. It starts as healthy, so that the server has a site to answer with."""

    well: bool = True
    in_row: int = 0
    """Consecutive probes that contradict `well`."""
    changed_at: float = 0.0
    drained_at: float | None = None
    took_s: float = 0.0
    why: str = ""


def after(standing: SiteHealth, probe: Probe, watch: SiteCheck, now: float) -> SiteHealth:
    """Return the health after one more probe."""
    seen = replace(standing, took_s=probe.took_s, why=probe.why)
    if probe.good == standing.well:
        return replace(seen, in_row=0)
    in_row = standing.in_row + 1
    if in_row < (watch.fall if standing.well else watch.rise):
        return replace(seen, in_row=in_row)
    return replace(seen, well=probe.good, in_row=0, changed_at=now)


def drained(standing: SiteHealth, now: float | None) -> SiteHealth:
    """Start draining a site at `now`, or end it with None; a drain in progress keeps its start."""
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

    If none is healthy, the draining sites that still answer; otherwise all that are not withdrawn: a faulty
    monitor must not take the service down.
    """
    states = {site.name: state(known.get(site.name, SiteHealth()), sites, now) for site in sites.site}
    for wanted in (("well",), ("draining",), ("out",)):
        found = [site for site in sites.site if states[site.name] in wanted]
        found = [s for s in found if wanted != ("draining",) or known[s.name].well]
        if found:
            return found
    return ()
