"""The policy on recorded loads, in a service of pretended replicas that is stepped twice a second.

A replica computes `slots` requests at once, each in `service_s`; who finds no slot waits in one queue, oldest
first. A replica that is asked for takes `start_s` to be ready; one that is let go finishes what it has.
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.spec.protocol.routing import AnswerOutcome
from windlass.spec.scale import Scale
from windlass.supervisor.autoscale.decide import Past, ScaleSignals, decide
from windlass.supervisor.autoscale.signals import AnswerWindow

LOADS = Path(__file__).parent / "load"
TICK_S = 0.5


@dataclass(frozen=True)
class World:
    """What replicas are like, and how many there is room for."""

    slots: int = 8
    service_s: float = 2.0
    start_s: float = 15.0
    room: int = 12
    queue: int = 10_000

    @property
    def rate(self) -> float:
        """Requests per second that one replica can answer."""
        return self.slots / self.service_s


@dataclass
class Told:
    """What a simulation went through."""

    waited_s: list[float] = field(default_factory=list)
    numbers: list[tuple[float, int]] = field(default_factory=list)
    """When the number of wanted replicas changed, and to what."""
    replica_s: float = 0.0
    refused: int = 0
    left: int = 0

    @property
    def turns(self) -> int:
        """How often the number went up after it had gone down, or down after up."""
        counts = [number for _, number in self.numbers]
        ways = [b > a for a, b in itertools.pairwise(counts)]
        return sum(a != b for a, b in itertools.pairwise(ways))

    def late(self, part: float) -> float:
        times = sorted(self.waited_s)
        return times[int(part * (len(times) - 1))] if times else 0.0


def load_of(name: str) -> list[int]:
    with (LOADS / f"{name}.csv").open() as file:
        return [int(row["requests"]) for row in csv.DictReader(file)]


def simulate(load: list[int], scale: Scale, world: World) -> Told:
    """Replay a load, with the policy deciding at every tick."""
    told, past, answers = Told(), Past(), AnswerWindow()
    wanted, ready_at = scale.min_replicas, [0.0] * scale.min_replicas
    told.numbers.append((0.0, wanted))
    waiting: deque[float] = deque()
    ends: list[float] = []
    for tick in range(int(len(load) / TICK_S)):
        now = tick * TICK_S
        ended = [end for end in ends if end <= now]
        ends = [end for end in ends if end > now]
        answers.take([AnswerOutcome("v", "r", first_token_s=0.1)] * len(ended), now)
        refused = _arrive(waiting, load, now, world)
        told.refused += refused
        ready = sum(at <= now for at in ready_at)
        while waiting and len(ends) < ready * world.slots:
            told.waited_s.append(now - waiting.popleft())
            ends.append(now + world.service_s)
        queue_s = answers.queue_s(len(waiting), now)
        seen = ScaleSignals(
            wanted, ready, len(ends) + len(waiting), refused, queue_s, answers.first_token_s()
        )
        decision = decide(scale, past, seen, slots=world.slots, room=world.room, now=now)
        past = decision.past
        if decision.replicas != wanted:
            told.numbers.append((now, decision.replicas))
        grown = [now + world.start_s] * max(0, decision.replicas - len(ready_at))
        ready_at = sorted([*ready_at, *grown])[: decision.replicas]
        wanted = decision.replicas
        told.replica_s += wanted * TICK_S
    told.left = len(waiting)
    return told


def _arrive(waiting: deque[float], load: list[int], now: float, world: World) -> int:
    """Let those of this half second come in; return how many found no place."""
    number = load[int(now)]
    coming = number - number // 2 if now % 1.0 else number // 2
    places = max(0, min(coming, world.queue - len(waiting)))
    waiting.extend([now] * places)
    return coming - places


SCALE = Scale(min_replicas=1, max_replicas=12, calm=120.0)
WORLD = World()
COSTS = {"diurnal": 2.0, "burst": 4.0, "step": 2.0, "flash_crowd": 2.0, "edge": 2.0}
"""Most replica-seconds, against those of a prophet; a burst's backlog is taken for load until it is gone."""


@functools.cache
def replayed(name: str) -> Told:
    return simulate(load_of(name), SCALE, WORLD)


def needed_s(load: list[int], world: World) -> float:
    """Return the replica-seconds of somebody who knows every minute beforehand."""
    minutes = [load[at : at + 60] for at in range(0, len(load), 60)]
    return sum(60 * max(1, math.ceil(max(minute) / world.rate)) for minute in minutes)


@pytest.mark.parametrize("name", COSTS)
def test_waits_are_short_but_for_the_time_a_replica_takes_to_start(name: str) -> None:
    told = replayed(name)
    assert told.left == told.refused == 0
    assert told.late(0.5) == 0
    assert told.late(1.0) <= 2 * WORLD.start_s


@pytest.mark.parametrize("name", COSTS)
def test_the_number_does_not_flap(name: str) -> None:
    assert replayed(name).turns <= 2 * len(load_of(name)) / SCALE.calm


@pytest.mark.parametrize("name", COSTS)
def test_no_more_is_kept_than_some_times_what_a_prophet_would_keep(name: str) -> None:
    assert replayed(name).replica_s <= COSTS[name] * needed_s(load_of(name), WORLD)


def test_a_load_around_the_edge_of_two_numbers_changes_them_hardly_ever() -> None:
    assert replayed("edge").turns <= 2


def test_a_service_that_may_not_grow_lets_requests_wait() -> None:
    """The bound of the first test is the policy's doing: without it the same load waits for minutes."""
    told = simulate(load_of("step"), Scale(min_replicas=1, max_replicas=1), WORLD)
    assert told.late(0.5) > 10 * WORLD.start_s


RATES = st.lists(st.integers(0, 24), min_size=2, max_size=8)


@settings(max_examples=30, deadline=None)
@given(RATES, st.floats(2.0, 40.0))
def test_any_load_that_fits_is_waited_for_no_longer_than_starts_take(
    rates: list[int], start_s: float
) -> None:
    load = [rate for rate in rates for _ in range(60)] + [0] * 60
    told = simulate(load, SCALE, World(start_s=start_s))
    assert told.left == told.refused == 0
    assert told.late(1.0) <= 2 * start_s + 2 * WORLD.service_s
    gaps = [b - a for (a, _), (b, _) in zip(told.numbers, told.numbers[1:], strict=False)]
    falls = [b < a for (_, a), (_, b) in zip(told.numbers, told.numbers[1:], strict=False)]
    rises = [False, *(not fall for fall in falls)]
    assert all(
        gap >= SCALE.calm for gap, fall, rose in zip(gaps, falls, rises, strict=False) if fall and rose
    )
