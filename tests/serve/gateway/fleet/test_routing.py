"""Which version answers, and which replica: properties of pure functions."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.gateway.fleet.reports import repetition
from windlass.serve.gateway.fleet.routing import (
    ReplicaCandidate,
    affinity,
    choose_replica,
    choose_version,
    place_of,
)
from windlass.spec.protocol.routing import Route

PLACES = st.floats(0.0, 1.0, exclude_max=True)
names = st.lists(st.sampled_from([f"engine-{n}" for n in range(9)]), unique=True, min_size=1)


def idle(*names: str) -> list[ReplicaCandidate]:
    return [ReplicaCandidate(name, 0, 8) for name in names]


@given(names, st.binary(min_size=1))
def test_a_prefix_returns_to_its_replica_when_other_replicas_start_or_stop(
    there: list[str], key: bytes
) -> None:
    chosen = choose_replica(idle(*there), key)
    assert choose_replica(idle(*reversed(there), "engine-new"), key).name in (chosen.name, "engine-new")
    others = [name for name in there if name != chosen.name]
    assert choose_replica(idle(chosen.name, *others[1:]), key) == chosen


@given(st.lists(st.integers(0, 40), min_size=2, max_size=6), st.binary(min_size=1))
def test_no_request_waits_for_a_warm_prefix_longer_than_the_margin(busy: list[int], key: bytes) -> None:
    candidates = [ReplicaCandidate(f"engine-{n}", each, 32) for n, each in enumerate(busy)]
    assert choose_replica(candidates, key).busy <= min(busy) + candidates[0].margin


def test_prefixes_spread_over_all_replicas_and_tenants_have_their_own() -> None:
    keys = [affinity("t", "", [n, *range(100)]) for n in range(300)]
    counts = Counter(choose_replica(idle("a", "b", "c"), key).name for key in keys)
    assert min(counts.values()) > 60
    assert affinity("t", "", [1]) != affinity("u", "", [1])
    assert affinity("t", "", [*range(64), 1]) == affinity("t", "", [*range(64), 2])


@given(
    st.dictionaries(st.sampled_from("abc"), st.floats(0.0, 9.0), min_size=1),
    st.sets(st.sampled_from("abcd")),
    PLACES,
)
def test_a_version_without_a_replica_is_chosen_only_if_no_version_has_one(
    weights: dict[str, float], alive: set[str], place: float
) -> None:
    version, standby = choose_version(Route(weights, standby=["d"]), alive, place)
    wanted = {each for each, weight in weights.items() if weight > 0}
    assert standby == (version == "d" and not wanted & alive)
    if wanted & alive:
        assert version in wanted & alive
    elif "d" in alive:
        assert version == "d"


@given(PLACES, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_growing_version_takes_conversations_over_and_gives_none_back(
    place: float, one: float, two: float
) -> None:
    less, more = sorted((one, two))
    chosen = [choose_version(Route({"old": 1 - w, "new": w}), {"old", "new"}, place)[0] for w in (less, more)]
    assert chosen != ["new", "old"]


def test_conversations_spread_by_weight() -> None:
    route = Route({"old": 0.9, "new": 0.1})
    places = [place_of(f"conversation {n}") for n in range(2000)]
    counts = Counter(choose_version(route, {"old", "new"}, place)[0] for place in places)
    assert 140 < counts["new"] < 270


def test_repetition_is_the_part_of_pairs_that_came_before() -> None:
    assert repetition([]) == repetition([1]) == repetition([1, 2, 3]) == 0.0
    assert repetition([1, 1, 1, 1, 1]) == 0.75
