"""One contract for the four policies, each against what was published, and the figures of eviction.py."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.corpus.remote.eviction import POLICIES, Arc, Policy, make_room

LIMIT = 10
kinds = st.sampled_from(sorted(POLICIES))
names = st.sampled_from("abcdefghijkl")
sizes = {name: 1 + i % 4 for i, name in enumerate("abcdefghijkl")}


def nobody(name: str) -> bool:
    return False


def read(policy: Policy, name: str, size: int = 1) -> bool:
    """Read through a cache that nobody else uses; tell whether it was a hit."""
    if name in policy:
        policy.touch(name)
        return True
    policy.miss(name, size)
    make_room(policy, size, nobody)
    policy.admit(name, size)
    return False


def hits(kind: str, trace: Iterable[str], limit: int) -> list[bool]:
    policy = POLICIES[kind](limit)
    return [read(policy, name) for name in trace]


def victims(kind: str, trace: str, limit: int) -> str:
    """Return what went, in order, while a trace of pages of size 1 was read."""
    policy, gone = POLICIES[kind](limit), ""
    for name in trace:
        before = set(policy.names())
        read(policy, name)
        gone += "".join(before - set(policy.names()))
    return gone


@given(kinds, st.lists(st.tuples(names, st.sets(names, max_size=4))))
def test_the_limit_holds_and_what_is_in_use_stays(kind: str, reads: list[tuple[str, set[str]]]) -> None:
    policy = POLICIES[kind](LIMIT)
    for name, in_use in reads:
        here = set(policy.names())
        if name in policy:
            policy.touch(name)
            continue
        policy.miss(name, sizes[name])
        gone, enough = make_room(policy, sizes[name], in_use.__contains__)
        assert not in_use & set(gone)
        assert set(policy.names()) == here - set(gone)
        if enough:
            policy.admit(name, sizes[name])
        else:
            assert set(policy.names()) <= in_use
        assert policy.bytes == sum(sizes[n] for n in policy.names()) <= LIMIT


@given(kinds, st.lists(names))
def test_no_more_goes_than_room_is_needed_for(kind: str, trace: list[str]) -> None:
    policy = POLICIES[kind](LIMIT)
    for name in trace:
        if name not in policy:
            free = LIMIT - policy.bytes
            policy.miss(name, sizes[name])
            gone, _ = make_room(policy, sizes[name], nobody)
            assert free + sum(sizes[n] for n in gone[:-1]) < sizes[name] or not gone
            policy.admit(name, sizes[name])


@given(kinds, st.lists(names), st.lists(names))
def test_a_policy_continues_from_its_state_as_if_unbroken(
    kind: str, past: list[str], future: list[str]
) -> None:
    policy = POLICIES[kind](LIMIT)
    for name in past:
        read(policy, name, sizes[name])
    other = POLICIES[kind](LIMIT)
    other.restore(json.loads(json.dumps(policy.state())))
    assert [read(policy, n, sizes[n]) for n in future] == [read(other, n, sizes[n]) for n in future]
    assert policy.names() == other.names()


@given(kinds, st.lists(names, min_size=1))
def test_what_has_gone_is_not_touched_and_may_come_again(kind: str, trace: list[str]) -> None:
    policy = POLICIES[kind](LIMIT)
    for name in trace:
        read(policy, name, sizes[name])
    policy.forget(trace[-1])
    policy.touch(trace[-1])
    assert trace[-1] not in policy
    assert not read(policy, trace[-1], sizes[trace[-1]])
    assert trace[-1] in policy


@pytest.mark.parametrize(
    ("kind", "gone"),
    [
        # a and b are read twice; then d, e and f each need the room of one page.
        ("lru", "cab"),
        ("mru", "bde"),
        ("lfu", "cde"),
    ],
)
def test_the_simple_policies_take_what_their_names_say(kind: str, gone: str) -> None:
    assert victims(kind, "abcab" + "def", 3) == gone


def test_lfu_takes_the_longest_unused_of_those_read_equally_often() -> None:
    assert victims("lfu", "aabbcc" + "d", 3) == "a"


def test_arc_keeps_what_was_read_twice_while_a_scan_passes() -> None:
    scan = [f"scan-{i}" for i in range(50)]
    trace = ["a", "b", "a", "b", *scan, "a", "b"]
    assert hits("arc", trace, 4)[-2:] == [True, True]
    assert hits("lru", trace, 4)[-2:] == [False, False]


def test_arc_gives_more_room_to_what_it_evicted_too_early() -> None:
    policy = Arc(4)
    for name in "ababcdefg":  # a and b are in t2, so that c, d and e leave t1 and are remembered
        read(policy, name)
    assert policy.share == 0
    read(policy, "e")
    assert policy.share == 0.25


class PaperArc:
    """Figure 4 of Megiddo and Modha (2003), word for word, for pages of one size. Least recent first."""

    def __init__(self, c: int) -> None:
        self.c, self.p = c, 0.0
        self.t1: list[str] = []
        self.t2: list[str] = []
        self.b1: list[str] = []
        self.b2: list[str] = []

    def replace(self, x: str) -> None:
        if self.t1 and ((x in self.b2 and len(self.t1) == self.p) or len(self.t1) > self.p):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))

    def read(self, x: str) -> bool:
        for row in (self.t1, self.t2):
            if x in row:
                row.remove(x)
                self.t2.append(x)
                return True
        if x in self.b1:
            self.p = min(float(self.c), self.p + max(len(self.b2) / len(self.b1), 1.0))
            self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
        elif x in self.b2:
            self.p = max(0.0, self.p - max(len(self.b1) / len(self.b2), 1.0))
            self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
        else:
            self.read_unknown(x)
        return False

    def read_unknown(self, x: str) -> None:
        first, both = len(self.t1) + len(self.b1), sum(map(len, (self.t1, self.t2, self.b1, self.b2)))
        if first == self.c:
            if len(self.t1) < self.c:
                self.b1.pop(0)
                self.replace(x)
            else:
                self.t1.pop(0)
        elif both >= self.c:
            if both == 2 * self.c:
                self.b2.pop(0)
            self.replace(x)
        self.t1.append(x)


@given(st.integers(1, 8), st.lists(names, max_size=200))
def test_arc_does_what_the_paper_says(limit: int, trace: list[str]) -> None:
    paper, ours = PaperArc(limit), Arc(limit)
    for name in trace:
        assert read(ours, name) == paper.read(name)
        assert ours.names() == [*paper.t1, *paper.t2]
        assert ours.share * limit == pytest.approx(paper.p)


def shuffled(shards: int, windows: int, epochs: int) -> list[str]:
    """Read as training does: every window once an epoch, in any order."""
    chance, trace = random.Random(1), []
    for _ in range(epochs):
        epoch = [str(i) for i in range(shards) for _ in range(windows)]
        chance.shuffle(epoch)
        trace += epoch
    return trace


def rate(kind: str, trace: list[str], limit: int) -> float:
    return sum(hits(kind, trace, limit)) / len(trace)


@pytest.mark.parametrize("kind", sorted(POLICIES))
def test_a_shuffled_order_gives_every_policy_the_share_that_fits(kind: str) -> None:
    assert rate(kind, shuffled(200, windows=50, epochs=3), 100) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("kind", "kept"), [("lru", 0.0), ("lfu", 0.0), ("mru", 0.45), ("arc", 0.0)])
def test_only_mru_keeps_something_of_a_text_that_is_read_again_in_order(kind: str, kept: float) -> None:
    trace = [str(i) for _ in range(10) for i in range(200)]
    assert rate(kind, trace, 100) == pytest.approx(kept, abs=0.01)


@pytest.mark.parametrize(("kind", "kept"), [("lru", 0.99), ("lfu", 0.99), ("mru", 0.79), ("arc", 0.99)])
def test_mru_alone_loses_what_is_read_much_more_often(kind: str, kept: float) -> None:
    chance = random.Random(1)
    trace = [str(min(199, int(chance.paretovariate(1)) - 1)) for _ in range(30_000)]
    assert rate(kind, trace, 100) == pytest.approx(kept, abs=0.03)
