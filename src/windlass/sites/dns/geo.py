"""How far sites are from a client: the most exact network that holds it says so. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.spec.sites import Network, Site, Sites

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class ClientDistances:
    """A client's distances from all sites, and how many bits of its address decided them."""

    distances: dict[str, float]
    scope: int


class Distances:
    """The tables of a zone, ready to be asked."""

    def __init__(self, sites: Sites) -> None:
        self._own = {site.name: site.distance for site in sites.site}
        rows: list[tuple[Network, dict[str, float]]] = [
            (ipaddress.ip_network(network), self._own | row.distances)
            for row in sites.clients
            for network in row.networks
        ]
        self._rows = sorted(rows, key=lambda row: -row[0].prefixlen)

    def of(self, client: Network) -> ClientDistances:
        """Return what the most exact network says that holds the client's.

        The scope is as wide as no other row could decide otherwise for anybody in it (RFC 7871, 7.2.1): a
        resolver may give the same answer to all of them.
        """
        inner = [network for network, _ in self._rows if _within(network, client)]
        scope = max((network.prefixlen for network in inner), default=0)
        for network, distances in self._rows:
            if _within(client, network):
                return ClientDistances(distances, max(scope, network.prefixlen, _apart(client, self._rows)))
        return ClientDistances(self._own, max(scope, _apart(client, self._rows)))


def by_distance(sites: Sequence[Site], where: ClientDistances) -> list[list[Site]]:
    """Return the sites, nearest first, those of equal distance together."""
    found: dict[float, list[Site]] = {}
    for site in sites:
        found.setdefault(where.distances[site.name], []).append(site)
    return [found[distance] for distance in sorted(found)]


def _within(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def _apart(client: Network, rows: Sequence[tuple[Network, dict[str, float]]]) -> int:
    """Return how many bits tell the client from every network of the tables that does not hold it."""
    most = 0
    for network, _ in rows:
        if network.version != client.version or _within(client, network) or _within(network, client):
            continue
        differ = int(network.network_address) ^ int(client.network_address)
        most = max(most, client.max_prefixlen - differ.bit_length() + 1)
    return most
