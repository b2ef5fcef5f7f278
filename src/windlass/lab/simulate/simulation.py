"""Runs a simulation: events happen, the control plane observes and acts, and the results are recorded."""

from __future__ import annotations

import time
from collections.abc import Iterable

from windlass.cluster.backend import Group, Resources
from windlass.control.plane.queued_job import JobEntry, Kind, ResourceNeeds
from windlass.control.plane.reconcile import Reconciler
from windlass.control.scheduler.decide import decide
from windlass.control.scheduler.snapshot import JobDecision, Snapshot, TenantQuota
from windlass.lab.simulate.backend import SimulatedBackend
from windlass.lab.simulate.events import EPOCH_S, Events
from windlass.lab.simulate.fleet import SimulatedFleet
from windlass.lab.simulate.memory_store import MemoryLedger
from windlass.lab.simulate.samples import Samples
from windlass.lab.simulate.scenario import Scenario
from windlass.lab.simulate.services import TENANT, services_of
from windlass.lab.simulate.sim_job import SimJob
from windlass.lab.simulate.usage import UsageIntegrals
from windlass.lab.simulate.workload import Arrivals, FaultModel, SimulatedJob
from windlass.spec.protocol.progress import Progress, Report, silent

LOOK_AGAIN_S = 60.0
"""Seconds after which an unchanged control plane steps again: waiting jobs age."""
SERVICES_WEIGHT = 2.0
MODULE = "windlass.lab.simulate"


class Simulation:
    """One fleet over some hours."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.events = Events()
        self.fleet = SimulatedFleet(scenario)
        self.tally = UsageIntegrals(self.fleet, self.events.now_s)
        self.fault_model = FaultModel(scenario)
        self.backend = SimulatedBackend(self.fleet, self.events, self.fault_model, self.tally)
        self.ledger = MemoryLedger(shares_of(scenario))
        self.plane = Reconciler(
            self.ledger, self.backend, group_of, self._decide, identity="simulated", clock=self.events.clock
        )
        self.services = list(services_of(scenario))
        self.lives: dict[str, SimJob] = {}
        self.samples = Samples(self.fleet, self.tally, self.plane.jobs)
        self.failures = self.steps = 0
        self.decide_s: list[float] = []
        """CPU seconds, like `step_s`: other processes of this machine do not count."""
        self.step_s: list[float] = []
        self._keys: dict[str, str] = {}
        self._down_turn = [0] * self.fleet.size
        self._stepped_s = EPOCH_S

    @property
    def end_s(self) -> float:
        return EPOCH_S + self.scenario.end_s

    def run(self, report: Report = silent) -> None:
        self._plan()
        at_s, period_s = EPOCH_S, self.scenario.period_s
        while at_s < self.end_s:
            at_s = min(self.end_s, at_s + period_s)
            self.events.run_until(at_s)
            self._serve(period_s)
            self._step()
            self.samples.take(at_s)
            note = {"waiting": len(self.plane.jobs.waiting), "running": len(self.plane.jobs.placed)}
            hours = (at_s - EPOCH_S) / 3600.0
            report(Progress("simulate", hours, self.scenario.hours, "h", note))
        self.tally.advance(self.end_s)

    def _step(self) -> None:
        """Run a step of the control plane, if anything changed."""
        now_s = self.events.now_s
        changed = self.backend.changed or self.ledger.changed_since_step
        if not changed and now_s - self._stepped_s < LOOK_AGAIN_S:
            return
        self.backend.changed = self.ledger.changed_since_step = False
        self.tally.advance(now_s)
        began = time.process_time()
        step = self.plane.step()
        self.step_s.append(time.process_time() - began)
        assert not step.trouble, step.trouble
        self.tally.check()
        self.steps += 1
        self._stepped_s = now_s

    def _decide(self, view: Snapshot) -> list[JobDecision]:
        began = time.process_time()
        decisions = decide(view)
        self.decide_s.append(time.process_time() - began)
        return decisions

    def _plan(self) -> None:
        """Schedule the first event of each kind."""
        for name, tenant in self.scenario.tenants.items():
            arrivals = Arrivals(name, tenant, self.scenario)
            for _ in range(arrivals.first()):
                self.submit(arrivals.draw())
            self._expect(arrivals, 0.0)
        if self.fault_model.none:
            return
        for row in range(self.fleet.size):
            self.events.after(self.fault_model.first_life_s(), self._fail, row)
        for rack in range(self.fleet.racks):
            self.events.after(self.fault_model.rack_life_s(), self._lose_rack, rack)
        overrides = self.scenario.overrides
        if overrides.outage_hour is not None:
            racks = max(1, round(overrides.outage_racks * self.fleet.racks))
            self.events.after(overrides.outage_hour * 3600.0, self._lose_power, range(racks))

    def _expect(self, arrivals: Arrivals, after_s: float) -> None:
        next_s = arrivals.next_s(after_s)
        if next_s <= self.scenario.end_s:
            self.events.at(EPOCH_S + next_s, self._arrive, arrivals, next_s)

    def _arrive(self, arrivals: Arrivals, at_s: float) -> None:
        self.submit(arrivals.draw())
        self._expect(arrivals, at_s)

    def submit(self, job: SimulatedJob) -> str:
        """Submit a job, as its owner would."""
        now_s = self.events.now_s
        room = job.need
        need = ResourceNeeds(
            job.members,
            room.cores,
            room.memory_bytes,
            room.gpus,
            job.min_members,
            preemptible=not job.endless,
            endless=job.endless,
        )
        uid = f"{len(self.lives):07x}"
        kind: Kind = "service" if job.endless else "train"
        entry = JobEntry(
            uid, job.tenant, job.name, kind, "", need, "simulation", now_s, priority=job.priority
        )
        life = self.lives[uid] = SimJob(job, now_s)
        self.backend.lives[entry.group_key] = life
        self._keys[uid] = entry.group_key
        self.ledger.submit(entry)
        return uid

    def _serve(self, passed_s: float) -> None:
        for service in self.services:
            service.step(self.events.now_s, passed_s, self._is_ready, self.submit, self.ledger.request_stop)

    def _is_ready(self, uid: str) -> bool:
        run = self.backend.runs.get(self._keys[uid])
        return run is not None and run.phase == "working"

    def _fail(self, row: int) -> None:
        if self.fleet.up[row]:
            self._take_down([row], self.fault_model.mend_s())

    def _lose_rack(self, rack: int) -> None:
        self._take_down(self.fleet.rows_of_rack(rack), self.fault_model.feed_s())
        self.events.after(self.fault_model.rack_life_s(), self._lose_rack, rack)

    def _lose_power(self, racks: Iterable[int]) -> None:
        rows = [row for rack in racks for row in self.fleet.rows_of_rack(rack)]
        self._take_down(rows, self.fault_model.feed_s())

    def _take_down(self, rows: Iterable[int], for_s: float) -> None:
        fallen = [row for row in rows if self.fleet.up[row]]
        self.backend.fail(fallen)
        self.failures += len(fallen)
        for row in fallen:
            self.events.after(self.scenario.faults.notice_s, self.backend.notice, row)
            self.events.after(for_s, self._mend, row)

    def _mend(self, row: int) -> None:
        self.backend.mend(row)
        if not self.fault_model.none:
            self.events.after(self.fault_model.life_s(), self._fail, row)

    def lost(self) -> int:
        """Count submitted jobs that have neither ended nor are in the tables: must be 0."""
        return len(self.lives) - len(self.ledger.open) - self.ledger.over.total()


def shares_of(scenario: Scenario) -> dict[str, TenantQuota]:
    shares = {TENANT: TenantQuota(TENANT, SERVICES_WEIGHT)}
    for name, tenant in scenario.tenants.items():
        shares[name] = TenantQuota(name, tenant.weight, max_priority=tenant.max_priority)
    return shares


def group_of(entry: JobEntry) -> Group:
    need = entry.need
    return Group(
        entry.group,
        MODULE,
        tenant=entry.tenant,
        resources=Resources(need.cores, need.memory_bytes, need.gpus),
        placement=need.placement,
        priority=entry.priority,
    )
