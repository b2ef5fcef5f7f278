"""Turns a DNS query into a DNS answer. Pure: the healthy sites and the distances are given.

The server is authoritative for one zone: no recursion, no transfer, one question per message. The apex of the
zone has the addresses of the nearest healthy site; each site also has its own name below, for debugging.
Answers state the client network that they are valid for (RFC 7871).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from windlass.sites.dns.geo import Distances, by_distance
from windlass.spec.sites import Network, Site, Sites

LARGEST_UDP = 1232
"""Largest UDP answer that is not fragmented on any path (DNS Flag Day 2020)."""
PLAIN_UDP = 512
LARGEST_QUERY = 512
"""A question with its options takes under 350 bytes; a longer query is rejected."""
HINFO = 'RFC8482 ""'
TRANSFERS = (dns.rdatatype.AXFR, dns.rdatatype.IXFR)


@dataclass(frozen=True)
class Zone:
    """The fixed configuration of the server."""

    sites: Sites
    distances: Distances
    name: dns.name.Name

    @staticmethod
    def of(sites: Sites) -> Zone:
        return Zone(sites, Distances(sites), dns.name.from_text(sites.zone))

    @property
    def nameservers(self) -> tuple[str, ...]:
        given = self.sites.nameservers or (f"ns.{self.sites.zone}",)
        return tuple(name if name.endswith(".") else f"{name}." for name in given)


def answer(
    data: bytes, zone: Zone, well: Sequence[Site], client: Network, serial: int, *, tcp: bool = False
) -> bytes | None:
    """Return the answer to a message, or None if it is not a query."""
    query = _read(data)
    if query is None:
        return _malformed(data)
    if query.flags & dns.flags.QR:
        return None  # an answer: replying could start an endless loop with another server
    reply = dns.message.make_response(query, recursion_available=False, our_payload=LARGEST_UDP)
    reply.set_rcode(_refusal(query, zone) or dns.rcode.NOERROR)
    if reply.rcode() == dns.rcode.NOERROR:
        _fill(reply, query, zone, well, client, serial)
    return _written(reply, query, tcp=tcp)


def client_of(query: dns.message.Message, sender: Network) -> tuple[Network, dns.edns.ECSOption | None]:
    """Return the client of a query: the network that the resolver names (ECS), or the sender."""
    option = next((o for o in query.options if isinstance(o, dns.edns.ECSOption)), None)
    if option is None or option.srclen == 0:
        return sender, option
    return ipaddress.ip_network(f"{option.address}/{option.srclen}", strict=False), option


def _read(data: bytes) -> dns.message.Message | None:
    if len(data) > LARGEST_QUERY:
        return None
    try:
        return dns.message.from_wire(data)
    except (dns.exception.DNSException, ValueError):
        return None


def _malformed(data: bytes) -> bytes | None:
    """Return FORMERR with the query's id; None for a message without id, or an answer."""
    if len(data) < 12 or data[2] & 0x80:
        return None
    return data[:2] + bytes((0x80 | data[2] & 0x79, dns.rcode.FORMERR)) + bytes(8)


def _refusal(query: dns.message.Message, zone: Zone) -> dns.rcode.Rcode | None:
    if query.opcode() != dns.opcode.QUERY:
        return dns.rcode.NOTIMP
    if query.edns > 0:
        return dns.rcode.BADVERS
    if len(query.question) != 1:
        return dns.rcode.FORMERR
    question = query.question[0]
    outside = question.rdclass != dns.rdataclass.IN or not question.name.is_subdomain(zone.name)
    return dns.rcode.REFUSED if outside or question.rdtype in TRANSFERS else None


def _fill(
    reply: dns.message.Message,
    query: dns.message.Message,
    zone: Zone,
    well: Sequence[Site],
    sender: Network,
    serial: int,
) -> None:
    question = query.question[0]
    reply.flags |= dns.flags.AA
    client, option = client_of(query, sender)
    where = zone.distances.of(client)
    if option is not None:
        echoed = dns.edns.ECSOption(option.address, option.srclen, min(where.scope, option.srclen))
        reply.use_edns(0, payload=LARGEST_UDP, options=[echoed])
    if question.name == zone.name:
        nearest = by_distance(well, where)[0] if well else []
        reply.answer += _at_top(zone, nearest, question.rdtype, serial)
    elif (named := _site_named(zone, question.name)) is not None:
        reply.answer += _addresses(zone, question.name, [named], question.rdtype)
    elif question.name.to_text().lower() not in zone.nameservers:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    if not reply.answer:
        reply.authority.append(_soa(zone, serial))


def _at_top(
    zone: Zone, nearest: Sequence[Site], kind: dns.rdatatype.RdataType, serial: int
) -> list[dns.rrset.RRset]:
    match kind:
        case dns.rdatatype.SOA:
            return [_soa(zone, serial)]
        case dns.rdatatype.NS:
            return [dns.rrset.from_text(zone.name, zone.sites.ttl, "IN", "NS", *zone.nameservers)]
        case dns.rdatatype.ANY:  # a minimal answer, against amplification (RFC 8482)
            return [dns.rrset.from_text(zone.name, zone.sites.ttl, "IN", "HINFO", HINFO)]
        case _:
            return _addresses(zone, zone.name, nearest, kind)


def _addresses(
    zone: Zone, name: dns.name.Name, sites: Sequence[Site], kind: dns.rdatatype.RdataType
) -> list[dns.rrset.RRset]:
    version = {dns.rdatatype.A: 4, dns.rdatatype.AAAA: 6}.get(kind)
    found = [a for site in sites for a in site.addresses if ipaddress.ip_address(a).version == version]
    return [dns.rrset.from_text_list(name, zone.sites.ttl, "IN", kind, found)] if found else []


def _site_named(zone: Zone, name: dns.name.Name) -> Site | None:
    relative = name.relativize(zone.name).to_text().lower()
    return next((site for site in zone.sites.site if site.name == relative), None)


def _soa(zone: Zone, serial: int) -> dns.rrset.RRset:
    """Return the SOA record; negative answers have the same TTL as positive ones."""
    ttl, contact = zone.sites.ttl, zone.sites.contact or f"hostmaster.{zone.sites.zone}"
    text = f"{zone.nameservers[0]} {contact.rstrip('.')}. {serial} 3600 600 86400 {ttl}"
    return dns.rrset.from_text(zone.name, ttl, "IN", "SOA", text)


def _written(reply: dns.message.Message, query: dns.message.Message, *, tcp: bool) -> bytes:
    """Encode an answer; one that is too long for UDP is truncated (TC), so that the client uses TCP."""
    if tcp:
        return reply.to_wire()
    room = min(max(query.payload, PLAIN_UDP), LARGEST_UDP) if query.edns >= 0 else PLAIN_UDP
    try:
        return reply.to_wire(max_size=room)
    except dns.exception.TooBig:
        cut = dns.message.make_response(query, our_payload=LARGEST_UDP)
        cut.flags |= dns.flags.TC | (reply.flags & dns.flags.AA)
        return cut.to_wire(max_size=room)
