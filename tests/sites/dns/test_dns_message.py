from __future__ import annotations

import ipaddress

import dns.edns
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.sites.dns.dns_message import LARGEST_QUERY, Zone, answer
from windlass.spec.sites import Clients, Site, Sites

SITES = Sites(
    zone="llm.example.org",
    site=(
        Site(name="east", addresses=("192.0.2.1", "2001:db8::1"), url="http://east"),
        Site(name="west", addresses=("192.0.2.2",), url="http://west", distance=200),
    ),
    clients=(
        Clients(networks=("10.1.0.0/16",), distances={"east": 5, "west": 90}),
        Clients(networks=("10.2.0.0/16", "2001:db8:2::/48"), distances={"east": 90, "west": 5}),
    ),
)
ZONE = Zone.of(SITES)
SOMEBODY = ipaddress.ip_network("198.51.100.7")


def answered(
    query: dns.message.Message, well: tuple[Site, ...] = SITES.site, who: str = ""
) -> dns.message.Message:
    client = ipaddress.ip_network(who) if who else SOMEBODY
    found = answer(query.to_wire(), ZONE, well, client, 7)
    assert found is not None
    return dns.message.from_wire(found)


def query(name: str = "llm.example.org.", kind: str = "A", **more: object) -> dns.message.Message:
    return dns.message.make_query(name, kind, **more)  # type: ignore[arg-type]


def addresses(reply: dns.message.Message) -> list[str]:
    return [str(each) for rrset in reply.answer for each in rrset]


@pytest.mark.parametrize(
    ("who", "nearest"), [("10.1.2.3", "192.0.2.1"), ("10.2.0.9", "192.0.2.2"), ("", "192.0.2.1")]
)
def test_clients_are_sent_to_the_site_that_is_nearest_to_them(who: str, nearest: str) -> None:
    reply = answered(query(), who=who)
    assert addresses(reply) == [nearest]
    assert reply.answer[0].ttl == SITES.ttl
    assert reply.flags & dns.flags.AA


def test_the_network_that_a_resolver_names_counts_and_the_answer_says_for_whom_it_holds() -> None:
    option = dns.edns.ECSOption("10.2.7.0", 24)
    reply = answered(query(use_edns=0, options=[option]), who="10.1.2.3")
    assert addresses(reply) == ["192.0.2.2"]
    echoed = next(o for o in reply.options if isinstance(o, dns.edns.ECSOption))
    assert (echoed.address, echoed.srclen, echoed.scopelen) == ("10.2.7.0", 24, 16)


@given(st.integers(0, 2**32 - 1), st.integers(8, 32))
def test_every_client_in_the_network_of_an_answer_gets_that_answer(number: int, bits: int) -> None:
    client = ipaddress.ip_network((number, bits), strict=False)
    where = ZONE.distances.of(client)
    if where.scope > bits:
        return  # the answer is for this network only as far as it was named
    wider = ipaddress.ip_network((int(client.network_address), where.scope), strict=False)
    for end in (wider.network_address, wider.broadcast_address):
        assert ZONE.distances.of(ipaddress.ip_network(end)).distances == where.distances


def test_a_site_that_is_not_well_is_passed_over_and_still_has_its_own_name() -> None:
    assert addresses(answered(query(), well=SITES.site[1:], who="10.1.2.3")) == ["192.0.2.2"]
    assert addresses(answered(query("EAST.llm.example.org."), well=SITES.site[1:])) == ["192.0.2.1"]


def test_each_kind_of_record_has_its_answer() -> None:
    assert addresses(answered(query(kind="AAAA"))) == ["2001:db8::1"]
    assert answered(query(kind="NS")).answer[0].to_text().endswith("NS ns.llm.example.org.")
    assert " 7 3600 " in answered(query(kind="SOA")).answer[0].to_text()
    nothing = answered(query(kind="TXT"))
    assert nothing.rcode() == dns.rcode.NOERROR
    assert nothing.authority[0].rdtype == dns.rdatatype.SOA
    assert len(answered(query(kind="ANY")).to_wire()) < 100


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("nowhere.llm.example.org.", "A", dns.rcode.NXDOMAIN),
        ("example.org.", "A", dns.rcode.REFUSED),
        ("www.example.com.", "A", dns.rcode.REFUSED),
        ("llm.example.org.", "AXFR", dns.rcode.REFUSED),
        ("llm.example.org.", "IXFR", dns.rcode.REFUSED),
    ],
)
def test_what_is_not_ours_is_refused(name: str, kind: str, code: int) -> None:
    reply = answered(query(name, kind))
    assert reply.rcode() == code
    assert not reply.answer
    assert not reply.flags & dns.flags.RA


def test_other_classes_operations_and_versions_are_refused() -> None:
    assert (
        answered(dns.message.make_query("llm.example.org.", "TXT", rdclass="CH")).rcode() == dns.rcode.REFUSED
    )
    update = query()
    update.set_opcode(dns.opcode.NOTIFY)
    assert answered(update).rcode() == dns.rcode.NOTIMP
    assert answered(query(use_edns=1)).rcode() == dns.rcode.BADVERS


def test_an_answer_is_not_answered() -> None:
    reply = dns.message.make_response(query())
    assert answer(reply.to_wire(), ZONE, SITES.site, SOMEBODY, 1) is None


def test_what_is_too_long_is_refused() -> None:
    long = query().to_wire() + bytes(LARGEST_QUERY)
    found = answer(long, ZONE, SITES.site, SOMEBODY, 1)
    assert found is not None
    assert found[:2] == long[:2]
    assert found[3] & 0xF == dns.rcode.FORMERR


@given(st.binary(max_size=600))
def test_no_bytes_make_it_fail_or_answer_with_more_than_a_packet(data: bytes) -> None:
    found = answer(data, ZONE, SITES.site, SOMEBODY, 1)
    assert found is None or len(found) <= 1232


def test_many_addresses_are_cut_for_a_packet_and_whole_over_tcp() -> None:
    many = tuple(f"192.0.2.{i}" for i in range(1, 101))
    zone = Zone.of(Sites(zone="z.example", site=(Site(name="a", addresses=many, url="http://a"),)))
    wire = query("z.example.").to_wire()
    cut = answer(wire, zone, zone.sites.site, SOMEBODY, 1)
    whole = answer(wire, zone, zone.sites.site, SOMEBODY, 1, tcp=True)
    assert cut is not None
    assert whole is not None
    assert dns.message.from_wire(cut).flags & dns.flags.TC
    assert len(cut) <= 512
    assert len(addresses(dns.message.from_wire(whole))) == 100
