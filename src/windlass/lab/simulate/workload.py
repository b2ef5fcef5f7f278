"""Random draws: arrivals and lengths of jobs, failures and repair times.

Every tenant draws from its own random stream, named after it. So a tenant's day does not depend on other
tenants, and the harm that a tenant does to them can be measured.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from windlass.control.scheduler.snapshot import MemberResources
from windlass.lab.simulate.scenario import MachineKind, Scenario, SimulatedFaults, SimulatedTenant

DAY_S = 86400.0
NOON_S = 14 * 3600.0
"""Hour of the highest demand."""


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job with its true length, which only the simulation knows."""

    tenant: str
    name: str
    members: int
    min_members: int | None
    need: MemberResources
    work_s: float
    """With all members, on nodes that are not slow."""
    save_every_s: float
    restart_s: float
    priority: int = 0
    endless: bool = False


def stream(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}-{name}")


def curve(at_s: float, day: float) -> float:
    """Return the demand at a time of day, relative to the mean."""
    return 1.0 + day * math.cos(2 * math.pi * (at_s - NOON_S) / DAY_S)


class Arrivals:
    """The jobs of one tenant."""

    def __init__(self, name: str, tenant: SimulatedTenant, scenario: Scenario) -> None:
        self.name, self.tenant = name, tenant
        self._chance = stream(scenario.seed, name)
        self._max_size = _max_members(tenant, scenario)
        self._per_s = tenant.load * _capacity(tenant, scenario) / self._mean_work()
        self._number = 0

    def _mean_work(self) -> float:
        """In GPU seconds (core seconds for jobs without GPUs)."""
        each = self.tenant.gpus or self.tenant.cores
        pairs = zip(self.tenant.members, self.tenant.chances, strict=True)
        members = sum(min(number, self._max_size) * part for number, part in pairs)
        return members * each * self.tenant.hours * 3600.0 * math.exp(self.tenant.spread**2 / 2)

    def first(self) -> int:
        """Return the number of jobs at the start of the day: a fleet is not empty at midnight."""
        if self.tenant.begins_hour:
            return 0
        mean_s = self.tenant.hours * 3600.0 * math.exp(self.tenant.spread**2 / 2)
        return round(self._per_s * curve(0.0, self.tenant.day) * mean_s)

    def next_s(self, at_s: float) -> float:
        """Return the next arrival: a Poisson process whose rate follows the time of day, by thinning."""
        at_s = max(at_s, self.tenant.begins_hour * 3600.0)
        fastest = self._per_s * (1 + self.tenant.day)
        while True:
            at_s += self._chance.expovariate(fastest)
            if self._chance.random() * (1 + self.tenant.day) <= curve(at_s, self.tenant.day):
                return at_s

    def draw(self) -> SimulatedJob:
        tenant, chance = self.tenant, self._chance
        self._number += 1
        members = min(self._max_size, chance.choices(tenant.members, tenant.chances)[0])
        min_members = None if tenant.min_share is None else max(1, round(members * tenant.min_share))
        return SimulatedJob(
            self.name,
            f"job{self._number:06}",
            members,
            min_members if min_members != members else None,
            tenant.need,
            work_s=min(48.0, chance.lognormvariate(math.log(tenant.hours), tenant.spread)) * 3600.0,
            save_every_s=tenant.save_minutes * 60.0,
            restart_s=tenant.restart_s,
            priority=5 if chance.random() < tenant.urgent else tenant.priority,
        )


def machines_of(kind: MachineKind, nodes: int) -> int:
    return round(kind.part * nodes)


def _capacity(tenant: SimulatedTenant, scenario: Scenario) -> float:
    kinds = scenario.machines.values()
    return sum(machines_of(k, scenario.nodes) * (k.gpus if tenant.gpus else k.cores) for k in kinds)


def _max_members(tenant: SimulatedTenant, scenario: Scenario) -> int:
    """A gang takes at most a quarter of the nodes that fit it: small fleets have small gangs."""
    fitting = [k for k in scenario.machines.values() if k.gpus >= tenant.gpus and k.cores >= tenant.cores]
    return max(1, sum(machines_of(k, scenario.nodes) for k in fitting) // 4)


class FaultModel:
    """Failures of nodes."""

    def __init__(self, scenario: Scenario) -> None:
        self.faults, self._factor = scenario.faults, scenario.overrides.faults
        self._chance = stream(scenario.seed, "faults")
        self._launches = stream(scenario.seed, "launches")

    @property
    def none(self) -> bool:
        return self._factor == 0.0

    def life_s(self) -> float:
        """Return the time to failure of a repaired node: Weibull, with the mean of the table."""
        faults = self.faults
        mean_s = faults.machine_days * DAY_S / self._factor
        return self._chance.weibullvariate(mean_s / math.gamma(1 + 1 / faults.youth), faults.youth)

    def first_life_s(self) -> float:
        """Return the time to failure of a node that has run for long: memoryless by then."""
        return self._chance.expovariate(self._factor / (self.faults.machine_days * DAY_S))

    def rack_life_s(self) -> float:
        return self._chance.expovariate(self._factor / (self.faults.rack_days * DAY_S))

    def mend_s(self) -> float:
        faults = self.faults
        if self._chance.random() < faults.reboots:
            return self._chance.lognormvariate(math.log(faults.reboot_minutes * 60.0), 0.4)
        return self._chance.lognormvariate(math.log(faults.repair_hours * 3600.0), 0.5)

    def feed_s(self) -> float:
        """Return how long racks are without power or network."""
        return self._chance.uniform(1800.0, 7200.0)

    def launch_s(self, members: int) -> float:
        """Return the seconds until the last of the processes has started."""
        slowest = max(self._launches.lognormvariate(0.0, 0.3) for _ in range(members))
        late = 1 - (1 - self.faults.straggler) ** members
        return self.faults.launch_s * (slowest * 10 if self._launches.random() < late else slowest)

    def save_s(self) -> float:
        return self._launches.uniform(5.0, 45.0)


def speeds(faults: SimulatedFaults, nodes: int, seed: int) -> list[float]:
    """Return the speed of each node; the cluster does not report slow ones."""
    chance = stream(seed, "speeds")
    return [faults.slow_speed if chance.random() < faults.slow else 1.0 for _ in range(nodes)]
