"""A version goes from site to site: in order, never all at once, and to the same end after any kill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.sites.dns.site_health import Probe
from windlass.sites.rollout.driver import SitesRolloutDriver
from windlass.sites.rollout.rollout_record import SitesRolloutRecord, SiteState
from windlass.sites.rollout.site_client import SiteClient, SiteRollout
from windlass.sites.rollout.turns import resumed
from windlass.spec.errors import InUse, WindlassError
from windlass.spec.rollout import Rollout
from windlass.spec.sites import SitesRollout

OLD, NEW = "poems@3", "poems@4"
PLAN = SitesRollout(settle=5, wait=60)


class Killed(BaseException):
    """The process is no more."""


@dataclass
class Effects:
    """Counts what is done to the world; dies after so many."""

    left: int = 1 << 30
    done: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        self.done.append(what)
        self.left -= 1
        if self.left <= 0:
            raise Killed


@dataclass
class FakeSite:
    """A site that does what a real one does, two looks later."""

    name: str
    effects: Effects
    verdict: str = "promoted"
    well: bool = True
    well_after: bool = True
    """Whether known answers are right once the new version is served."""
    copy: bool = True
    cut: bool = False
    serves: str = OLD
    history: list[SiteRollout] = field(default_factory=list)
    drained: bool = False
    visited: bool = False
    """Whether clients still come, drained or not."""
    served: list[str] = field(default_factory=list)
    looks: int = 0

    def has_copy(self) -> bool:
        return self.copy

    def serving(self) -> str:
        self._reach()
        return self.serves

    def rollouts(self) -> list[SiteRollout]:
        self._reach()
        self._go_on()
        return list(reversed(self.history))

    def start(self, candidate: str, kind: str, policy: Rollout) -> None:
        self._reach()
        if self.history and self.history[-1].state not in ("promoted", "rolled_back", "aborted"):
            raise InUse("another roll-out is under way")
        self.history.append(SiteRollout(f"ro-{len(self.history)}", candidate, "waiting", ""))
        self.looks = 0
        self.effects.note(f"{self.name}: start {candidate}")

    def command(self, rollout: str, what: str) -> None:
        self._reach()
        assert rollout == self.history[-1].id
        self._end("aborted" if what == "abort" else "promoted")
        self.effects.note(f"{self.name}: {what}")

    def ask(self) -> Probe:
        self._reach()
        good = self.well and (self.well_after or self.serves == OLD)
        return Probe(good, 0.1, "" if good else "gives an unexpected answer")

    def drain(self, *, on: bool) -> None:
        if self.drained != on:
            self.drained = on
            self.effects.note(f"{self.name}: {'drain' if on else 'undrain'}")

    def is_withdrawn(self) -> bool:
        return self.drained and not self.visited

    def _go_on(self) -> None:
        if not self.history or self.history[-1].state in ("promoted", "rolled_back", "aborted"):
            return
        self.looks += 1
        last = self.history[-1]
        if self.looks == 2:
            self.history[-1] = replace(last, state="canary", weight=0.5)
        elif self.looks > 2:
            self._end(self.verdict if last.candidate == NEW else "promoted")

    def _end(self, state: str) -> None:
        last = self.history[-1]
        self.history[-1] = replace(last, state=state, reason="it is worse" if state == "rolled_back" else "")
        if state == "promoted":
            self.serves = last.candidate
            self.served.append(last.candidate)

    def _reach(self) -> None:
        if self.cut:
            raise WindlassError(f"{self.name}: no answer")


class World:
    """Three sites, the store with the record, and the driver."""

    def __init__(self, plan: SitesRollout = PLAN, *, back: bool = False) -> None:
        self.effects, self.plan, self.now = Effects(), plan, 1000.0
        self.sites = {name: FakeSite(name, self.effects) for name in ("east", "north", "west")}
        turns = {name: SiteState(since_s=self.now) for name in self.sites}
        self.stored = SitesRolloutRecord(NEW, tuple(self.sites), self.now, self.now, back=back, sites=turns)
        self.max_busy = 0

    def drive(self, until: Callable[[SitesRolloutRecord], bool] = lambda _: False) -> SitesRolloutRecord:
        """Resume from the stored record, as another process would."""
        clients: dict[str, SiteClient] = dict(self.sites)
        driver = SitesRolloutDriver(resumed(self.stored, self.now), clients, self.plan, 2, self._save)
        for _ in range(2000):
            over = driver.step(self.now)
            busy = [t for t in driver.record.sites.values() if t.phase in ("draining", "rolling", "undoing")]
            self.max_busy = max(self.max_busy, len(busy))
            self.now += 1
            if over or until(driver.record):
                return driver.record
        raise AssertionError(f"it never ends: {driver.record}")

    def _save(self, record: SitesRolloutRecord) -> None:
        self.stored = record
        self.effects.note("save")

    def phases(self) -> list[str]:
        return [turn.phase for turn in self.stored.sites.values()]

    def serves(self) -> list[str]:
        return [site.serves for site in self.sites.values()]


def test_a_good_version_goes_through_all_sites_in_their_order() -> None:
    world = World()
    assert world.drive().state == "done"
    assert world.serves() == [NEW] * 3
    starts = [what for what in world.effects.done if "start" in what]
    assert starts == [f"{name}: start {NEW}" for name in ("east", "north", "west")]
    assert world.max_busy == 1


def test_a_bad_version_stops_at_the_canary_and_no_other_site_changes() -> None:
    world = World()
    world.sites["east"].verdict = "rolled_back"
    record = world.drive()
    assert (record.state, record.reason) == ("failed", "east: it is worse")
    assert world.phases() == ["failed", "waiting", "waiting"]
    assert world.serves() == [OLD] * 3
    assert not world.sites["north"].history


def test_a_site_that_answers_wrongly_after_its_promotion_is_taken_back() -> None:
    world = World()
    world.sites["north"].well_after = False
    record = world.drive()
    assert record.state == "failed"
    assert world.phases() == ["done", "undone", "waiting"]
    assert world.serves() == [NEW, OLD, OLD]


def test_with_back_the_sites_before_it_go_back_too() -> None:
    world = World(back=True)
    world.sites["north"].well_after = False
    assert world.drive().state == "failed"
    assert world.phases() == ["undone", "undone", "waiting"]
    assert world.serves() == [OLD] * 3


def test_a_site_without_its_copy_is_waited_for_and_then_it_stops() -> None:
    world = World()
    world.sites["north"].copy = False
    record = world.drive()
    assert record.state == "stopped"
    assert "north: it has no copy of poems@4, for 60 s" in record.reason
    assert world.phases() == ["done", "waiting", "waiting"]
    world.sites["north"].copy = True
    assert world.drive().state == "done"


@pytest.mark.parametrize("phase", ["rolling", "settling"])
def test_a_site_that_is_cut_off_in_the_midst_stops_it_and_it_continues_when_it_is_back(phase: str) -> None:
    world = World()
    world.drive(lambda record: record.sites["north"].phase == phase)
    world.sites["north"].cut = True
    record = world.drive()
    assert record.state == "stopped"
    assert "north: no answer" in record.reason
    assert not world.sites["west"].history
    world.sites["north"].cut = False
    assert world.drive().state == "done"
    assert [len(site.history) for site in world.sites.values()] == [1, 1, 1]


def test_the_last_site_that_is_well_is_never_touched() -> None:
    world = World()
    for name in ("north", "west"):
        world.sites[name].well = False
    record = world.drive()
    assert (record.state, world.serves()) == ("stopped", [OLD] * 3)
    assert "no other site is healthy" in record.reason


def test_a_site_is_drained_before_and_gets_clients_again_after() -> None:
    world = World(SitesRollout(settle=5, wait=60, drain=True))
    assert world.drive().state == "done"
    done = [what for what in world.effects.done if what.startswith("east")]
    assert done == ["east: drain", f"east: start {NEW}", "east: undrain"]


def test_a_site_whose_clients_do_not_go_gets_them_back_and_it_continues_later() -> None:
    world = World(SitesRollout(settle=5, wait=60, drain=True))
    world.sites["east"].visited = True
    record = world.drive()
    assert (record.state, world.sites["east"].drained) == ("stopped", False)
    assert "east: clients are still sent to it" in record.reason
    world.sites["east"].visited = False
    assert world.drive().state == "done"
    assert not any(site.drained for site in world.sites.values())


def test_after_the_canary_several_sites_may_change_at_once() -> None:
    world = World(SitesRollout(settle=5, wait=60, at_once=2))
    assert world.drive().state == "done"
    assert world.max_busy == 2
    starts = [what for what in world.effects.done if "start" in what]
    assert starts[0] == f"east: start {NEW}"


def test_when_one_of_several_fails_the_other_is_aborted() -> None:
    world = World(SitesRollout(settle=5, wait=60, at_once=2))
    world.sites["north"].verdict = "rolled_back"
    world.drive()
    assert world.stored.state == "failed"
    assert world.serves() == [NEW, OLD, OLD]
    assert not any(site.drained for site in world.sites.values())


def test_a_site_that_serves_it_already_is_only_probed() -> None:
    world = World()
    world.sites["east"].serves = NEW
    assert world.drive().state == "done"
    assert not world.sites["east"].history


def test_an_earlier_roll_out_of_the_same_version_is_not_taken_for_this_one() -> None:
    world = World()
    world.sites["east"].history.append(SiteRollout("ro-before", NEW, "rolled_back", "the disk was full"))
    assert world.drive().state == "done"
    assert [seen.state for seen in world.sites["east"].history] == ["rolled_back", "promoted"]


kills = st.lists(st.integers(1, 25), max_size=8)
faults = st.sampled_from(["none", "verdict", "after"])


@given(kills=kills, fault=faults, at=st.sampled_from(["east", "north", "west"]), back=st.booleans(),
       drain=st.booleans(), at_once=st.integers(1, 2))  # fmt: skip
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
def test_killed_after_any_effect_and_run_again_it_ends_the_same(
    kills: list[int], fault: str, at: str, back: bool, drain: bool, at_once: int
) -> None:
    def world_of() -> World:
        world = World(SitesRollout(settle=5, wait=60, drain=drain, at_once=at_once), back=back)
        if fault == "verdict":
            world.sites[at].verdict = "rolled_back"
        elif fault == "after":
            world.sites[at].well_after = False
        return world

    calm = world_of()
    calm.drive()
    world = world_of()
    for count in kills:
        world.effects.left = count
        try:
            world.drive()
        except Killed:
            world.now += 500
        if world.stored.state != "under way":
            break
    world.effects.left = 1 << 30
    if world.stored.state == "under way":
        world.drive()
    assert _end(world) == _end(calm)
    assert not any(site.drained for site in world.sites.values())
    for site in world.sites.values():
        assert sum(seen.candidate == NEW for seen in site.history) <= 1


def _end(world: World) -> tuple[Any, ...]:
    """How it ended. Where several sites change at once, who was how far when another failed is chance."""
    chance = world.plan.at_once > 1 and world.stored.state == "failed"
    return (world.stored.state, *([] if chance else [world.serves(), world.phases()]))
