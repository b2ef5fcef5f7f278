"""The simulated cluster keeps what cluster.backend promises, as far as its members can."""

from __future__ import annotations

import pytest

from windlass.cluster.backend import Group, Resources
from windlass.control.scheduler.snapshot import MemberResources
from windlass.lab.simulate.backend import SimulatedBackend
from windlass.lab.simulate.events import Events
from windlass.lab.simulate.fleet import SimulatedFleet
from windlass.lab.simulate.scenario import scenario_of
from windlass.lab.simulate.sim_job import SimJob
from windlass.lab.simulate.usage import UsageIntegrals
from windlass.lab.simulate.workload import FaultModel, SimulatedJob
from windlass.spec.errors import BadInput, InUse, NotFound

NEED = MemberResources(80.0, 1 << 30, 8)


class Small:
    """Ten machines, six of them with eight GPUs, and one kind of job."""

    def __init__(self) -> None:
        scenario = scenario_of("calm", 10, 1.0, 1)
        self.events, self.fleet = Events(), SimulatedFleet(scenario)
        self.tally = UsageIntegrals(self.fleet, self.events.now_s)
        self.backend = SimulatedBackend(self.fleet, self.events, FaultModel(scenario), self.tally)

    def group(self, name: str, count: int = 2, least: int | None = None, work_s: float = 3600.0) -> Group:
        job = SimulatedJob("a", name, count, least, NEED, work_s, save_every_s=600.0, restart_s=60.0)
        self.backend.lives[f"a/{name}"] = SimJob(job, self.events.now_s)
        return Group(name, "made.up", count=count, tenant="a", resources=Resources(80.0, 1 << 30, 8))

    def life(self, name: str) -> SimJob:
        return self.backend.lives[f"a/{name}"]

    def wait(self, seconds: float) -> None:
        self.events.run_until(self.events.now_s + seconds)
        self.backend.survey()
        self.tally.advance(self.events.now_s)
        self.tally.check()

    def states(self, name: str) -> list[str]:
        standing = self.backend.observe(f"a/{name}")
        return [] if standing is None else [member.state for member in standing.members]

    def row(self, name: str, index: int) -> int:
        return self.backend.runs[f"a/{name}"].members[index].row


@pytest.fixture
def small() -> Small:
    return Small()


def test_a_group_starts_works_and_is_done(small: Small) -> None:
    small.backend.launch(small.group("x"))
    assert small.states("x") == ["pending", "pending"]
    small.wait(600)
    assert small.states("x") == ["running", "running"]
    small.wait(6000)
    standing = small.backend.observe("a/x")
    assert standing is not None
    assert standing.over
    small.backend.stop("a/x")
    assert small.backend.observe("a/x") is None


def test_every_call_may_be_repeated(small: Small) -> None:
    group = small.group("x")
    small.backend.launch(group)
    small.wait(600)
    before = small.backend.observe("a/x")
    small.backend.launch(group)
    assert small.backend.observe("a/x") == before
    small.backend.stop("a/x")
    small.backend.stop("a/x")
    with pytest.raises(InUse):
        small.backend.launch(group)
    small.wait(60)
    small.backend.stop("a/x")
    assert small.backend.observe("a/x") is None


def test_what_is_unknown_is_refused(small: Small) -> None:
    with pytest.raises(NotFound):
        small.backend.scale("a/nobody", 2)
    with pytest.raises(BadInput):
        small.backend.launch(Group("nobody", "made.up"))
    small.backend.launch(small.group("x"))
    with pytest.raises(InUse):
        small.backend.launch(Group("x", "other", count=2, tenant="a"))


def test_a_gang_gets_all_its_machines_or_none(small: Small) -> None:
    small.backend.launch(small.group("large", 5))
    small.backend.launch(small.group("second", 2))
    small.wait(600)
    assert small.states("large") == ["running"] * 5
    assert small.states("second") == ["pending"] * 2
    assert [member.row for member in small.backend.runs["a/second"].members] == [-1, -1]
    small.backend.stop("a/large")
    small.wait(60)
    small.wait(600)
    assert small.states("second") == ["running"] * 2


def test_a_stopped_member_saves_first_and_continues_from_there(small: Small) -> None:
    group = small.group("x")
    small.backend.launch(group)
    small.wait(1000)
    small.backend.stop("a/x")
    small.wait(60)
    saved_s = small.life("x").progress_s
    assert saved_s == small.life("x").saved_s > 700
    small.backend.launch(group)
    small.wait(600)
    small.wait(3600 - saved_s)
    assert small.life("x").ended_s is not None


def test_a_gang_that_loses_a_machine_goes_back_to_its_last_save_and_gets_another(small: Small) -> None:
    small.backend.launch(small.group("x"))
    small.wait(1000)
    row = small.row("x", 1)
    small.backend.fail([row])
    assert small.life("x").progress_s == small.life("x").saved_s
    assert 500 < small.life("x").saved_s < 650
    shown = {node.name: node.alive for node in small.backend.survey().nodes}
    assert shown[small.fleet.name(row)]  # nobody has noticed yet
    small.backend.notice(row)
    shown = {node.name: node.alive for node in small.backend.survey().nodes}
    assert not shown[small.fleet.name(row)]
    small.wait(600)
    assert small.states("x") == ["running", "running"]
    assert small.row("x", 1) != row
    assert len(small.backend.healed_s) == 1


def test_an_elastic_job_continues_with_those_that_are_left(small: Small) -> None:
    small.backend.launch(small.group("x", 6, least=2))
    small.wait(1000)
    before_s = small.life("x").progress_s
    row = small.row("x", 0)
    small.backend.fail([row])
    small.backend.notice(row)
    small.wait(600)
    assert small.life("x").progress_s > before_s + 400  # five of six, and nothing lost
    assert small.states("x").count("running") == 5
    small.backend.scale("a/x", 5)
    small.wait(60)
    assert small.backend.healed_s
    small.backend.mend(row)
    small.backend.scale("a/x", 6)
    small.wait(600)
    assert small.states("x") == ["running"] * 6
