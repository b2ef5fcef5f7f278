from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from windlass.sites.dns.site_health import Probe, SiteHealth, after, answering, drained, state
from windlass.spec.sites import Site, SiteCheck, Sites

SITES = Sites(
    zone="z.example",
    ttl=5,
    drain=30,
    site=tuple(Site(name=name, addresses=("192.0.2.1",), url="http://a") for name in ("a", "b")),
)
WATCH = SiteCheck(fall=2, rise=3)
GOOD, BAD = Probe(True), Probe(False, why="no answer")


def seen(*probes: Probe, standing: SiteHealth | None = None) -> SiteHealth:
    found = standing or SiteHealth()
    for second, probe in enumerate(probes):
        found = after(found, probe, WATCH, float(second))
    return found


def test_a_site_leaves_after_some_bad_answers_in_a_row_and_comes_back_after_more_good_ones() -> None:
    assert seen(BAD).well
    assert not seen(BAD, BAD).well
    assert not seen(BAD, BAD, GOOD, GOOD).well
    assert seen(BAD, BAD, GOOD, GOOD, GOOD).well


@given(st.lists(st.booleans(), max_size=60))
def test_a_site_never_changes_without_the_configured_number_of_probes_in_a_row(goods: list[bool]) -> None:
    states = list(accumulate(goods, lambda s, g: after(s, Probe(g), WATCH, 0.0), initial=SiteHealth()))
    for place in range(1, len(states)):
        if states[place].well != states[place - 1].well:
            run = WATCH.rise if states[place].well else WATCH.fall
            assert goods[place - run : place] == [states[place].well] * run


def test_a_drained_site_gets_no_new_clients_and_is_withdrawn_when_cached_answers_have_expired() -> None:
    standing = drained(drained(SiteHealth(), 100.0), 120.0)
    assert state(standing, SITES, 134.9) == "draining"
    assert state(standing, SITES, 135.0) == "withdrawn"
    assert state(drained(standing, None), SITES, 200.0) == "well"
    found = answering(SITES, {"a": standing, "b": SiteHealth()}, 101.0)
    assert [site.name for site in found] == ["b"]


def test_where_none_is_well_the_drained_and_then_all_others_answer() -> None:
    out = seen(BAD, BAD)
    draining = drained(SiteHealth(), 100.0)
    assert [s.name for s in answering(SITES, {"a": out, "b": draining}, 101.0)] == ["b"]
    assert [s.name for s in answering(SITES, {"a": out, "b": out}, 101.0)] == ["a", "b"]
    assert [s.name for s in answering(SITES, {"a": out, "b": draining}, 1000.0)] == ["a"]
