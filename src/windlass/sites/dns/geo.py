"""Distances of the sites from a client, by longest-prefix match. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.spec.sites import Network, Site, Sites

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class ClientDistances:
    """A client's distances from all sites, and the prefix length that they are valid for."""

    distances: dict[str, float]
    scope: int


class Distances:
    """The distance tables of a zone."""

    def __init__(self, sites: Sites) -> None:
        self._own = {site.name: site.distance for site in sites.site}
        rows: list[tuple[Network, dict[str, float]]] = [
            (ipaddress.ip_network(network), self._own | row.distances)
            for row in sites.clients
            for network in row.networks
        ]
        self._rows = sorted(rows, key=lambda row: -row[0].prefixlen)

    def of(self, client: Network) -> ClientDistances:
        """Return the distances by longest-prefix match for the client.

        The scope is the widest prefix in which every address gets the same answer (RFC 7871, 7.2.1), so a
        resolver may cache the answer for it.
        """
        inner = [network for network, _ in self._rows if _within(network, client)]
        scope = max((network.prefixlen for network in inner), default=0)
        for network, distances in self._rows:
            if _within(client, network):
                return ClientDistances(distances, max(scope, network.prefixlen, _apart(client, self._rows)))
        return ClientDistances(self._own, max(scope, _apart(client, self._rows)))


def by_distance(sites: Sequence[Site], where: ClientDistances) -> list[list[Site]]:
    """Return groups of sites with equal distance, nearest first."""
    found: dict[float, list[Site]] = {}
    for site in sites:
        found.setdefault(where.distances[site.name], []).append(site)
    return [found[distance] for distance in sorted(found)]


def _within(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def _apart(client: Network, rows: Sequence[tuple[Network, dict[str, float]]]) -> int:
    """Return the prefix length that separates the client from every network that does not contain it."""
    bits = 0
    for network, _ in rows:
        if network.version != client.version or _within(client, network) or _within(network, client):
            continue
        differ = int(network.network_address) ^ int(client.network_address)
        bits = max(bits, client.max_prefixlen - differ.bit_length() + 1)
    return bits
