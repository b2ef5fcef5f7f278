"""A layout's whole run: wall time with failures and checkpoints, money, energy.

Equal devices are a team of one pool. Unequal ones are a team of several, each of which computes a share of
every batch (`heterogeneous`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from windlass.plan.cost.goodput import FailureModel, Failures, goodput
from windlass.plan.cost.money import RunCost, added, cost_of
from windlass.plan.cost.step_config import TrainingStep
from windlass.plan.cost.step_time import StepTime
from windlass.plan.cost.storage import StorageNeeds, storage
from windlass.plan.fleet.explore import LayoutEstimate, Objective
from windlass.plan.fleet.pools import DevicePool
from windlass.plan.fleet.work import TrainingWork

HOST_BYTES_S = 10e9
"""At which a device copies its state to the memory of its machine, while training waits: half of what
PCIe 4.0 carries. From there it is written while training continues (Eisenman et al. 2022, Check-N-Run,
NSDI, section 4)."""


@dataclass(frozen=True)
class PoolLayout:
    """A pool with its layout."""

    pool: DevicePool
    estimate: LayoutEstimate

    @property
    def case(self) -> TrainingStep:
        return self.estimate.case


@dataclass(frozen=True)
class RunEstimate:
    """A layout and its whole run."""

    members: tuple[PoolLayout, ...]
    """The first is the one that sets the pace."""
    step: StepTime
    steps: int
    goodput: FailureModel
    storage: StorageNeeds
    cost: RunCost

    @property
    def case(self) -> TrainingStep:
        return self.members[0].case

    @property
    def devices(self) -> int:
        return sum(member.case.devices for member in self.members)

    @cached_property
    def seconds(self) -> float:
        return self.goodput.seconds(self.steps * self.step.seconds)

    @property
    def seconds_range(self) -> tuple[float, float]:
        low, high = (self.goodput.seconds(self.steps * s) for s in (self.step.low, self.step.high))
        return low, high

    @property
    def dollars(self) -> float | None:
        """The middle of the range, to compare by."""
        return self.cost.middle

    @property
    def memory_bytes(self) -> float:
        return max(member.estimate.memory.bytes for member in self.members)


def estimate_run(work: TrainingWork, pool: DevicePool, estimate: LayoutEstimate) -> RunEstimate:
    """Return the whole run of one layout on equal devices."""
    assert estimate.step is not None
    return estimate_team(work, (PoolLayout(pool, estimate),), estimate.step)


def estimate_team(work: TrainingWork, members: tuple[PoolLayout, ...], step: StepTime) -> RunEstimate:
    """Return the whole run of a team whose mean step is known; the first member sets the pace."""
    lead, devices = members[0], sum(member.case.devices for member in members)
    stored = storage(lead.case, tokens=work.tokens, steps=work.steps, store_bytes_s=lead.pool.store_bytes_s)
    useful = goodput(
        _failures(members),
        devices,
        step_s=step.seconds,
        stall_s=stored.checkpoint_bytes / devices / HOST_BYTES_S,
        load_s=stored.load_s,
        lag_s=stored.write_s,
        replicas=sum(member.case.dp for member in members),
    )
    seconds = useful.seconds(work.steps * step.seconds)
    costs = [cost_of(seconds, m.case.devices, m.pool.device, m.pool.prices) for m in members]
    return RunEstimate(members, step, work.steps, useful, stored, added(costs))


def worth(run: RunEstimate, objective: Objective) -> tuple[float, float]:
    """Return the cost to minimise, and the tie-breaker. Unknown prices count by device hours."""
    if objective == "memory":
        return run.memory_bytes, run.seconds
    if objective == "money":
        paid = run.dollars
        return (run.devices * run.seconds if paid is None else paid), run.seconds
    return run.seconds, run.devices


def _failures(members: tuple[PoolLayout, ...]) -> Failures:
    """Those of a mean device: the rates of all members add up."""
    rates = [member.case.devices / member.pool.failures.mtbf_s for member in members]
    devices = sum(member.case.devices for member in members)
    return Failures(devices / sum(rates), members[0].pool.failures.restart_s)
