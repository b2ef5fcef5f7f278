"""What is simulated: machines, tenants and their habits, services, faults (scenarios.toml)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from windlass.control.scheduler.snapshot import MemberResources
from windlass.spec.errors import BadInput, did_you_mean

TABLE = Path(__file__).with_name("scenarios.toml")
GIB = 1 << 30
FEWEST_NODES, MAX_NODES = 10, 100_000


@dataclass(frozen=True)
class MachineKind:
    """Machines that are alike."""

    part: float
    cores: float
    memory_gib: int
    gpus: int

    @property
    def total(self) -> MemberResources:
        return MemberResources(self.cores, self.memory_gib * GIB, self.gpus)


@dataclass(frozen=True)
class SimulatedFaults:
    """How often machines fail, how long they take to mend, and what else they do to those who use them."""

    machine_days: float
    youth: float
    rack: int
    rack_days: float
    reboot_minutes: float
    reboots: float
    repair_hours: float
    notice_s: float
    slow: float
    slow_speed: float
    launch_s: float
    straggler: float


@dataclass(frozen=True)
class SimulatedTenant:
    """Who submits what, and how often."""

    weight: float
    load: float
    members: tuple[int, ...]
    chances: tuple[float, ...]
    cores: float
    memory_gib: int
    gpus: int
    hours: float
    spread: float
    save_minutes: float
    restart_s: float
    day: float
    least: float | None = None
    priority: int = 0
    urgent: float = 0.0
    max_priority: int | None = None
    begins_hour: float = 0.0

    @property
    def need(self) -> MemberResources:
        return MemberResources(self.cores, self.memory_gib * GIB, self.gpus)


@dataclass(frozen=True)
class Services:
    """Models that answer, each with as many replicas as its load wants."""

    number: int
    load: float
    cores: float
    memory_gib: int
    gpus: int
    slots: int
    restart_s: float
    priority: int
    day: float

    @property
    def need(self) -> MemberResources:
        return MemberResources(self.cores, self.memory_gib * GIB, self.gpus)


@dataclass(frozen=True)
class Twist:
    """What makes one scenario another than the common table says."""

    load: float = 1.0
    day: float = 1.0
    faults: float = 1.0
    outage_hour: float | None = None
    outage_racks: float = 0.0
    hostile: bool = False


@dataclass(frozen=True)
class Scenario:
    """All that a simulation depends on."""

    name: str
    nodes: int
    hours: float
    seed: int
    machines: dict[str, MachineKind]
    faults: SimulatedFaults
    tenants: dict[str, SimulatedTenant]
    services: Services
    twist: Twist = Twist()
    period_s: float = 30.0
    """Between two steps of the control plane."""

    @property
    def end_s(self) -> float:
        return self.hours * 3600.0


def names() -> list[str]:
    return list(_table()["scenarios"])


def scenario_of(name: str, nodes: int, hours: float, seed: int) -> Scenario:
    """Read a scenario, made to the measure of so many machines."""
    table = _table()
    if name not in table["scenarios"]:
        raise BadInput(f"there is no scenario '{name}'", hint=did_you_mean(name, list(table["scenarios"])))
    if not FEWEST_NODES <= nodes <= MAX_NODES:
        raise BadInput(f"{nodes} machines: a fleet has {FEWEST_NODES} to {MAX_NODES:,}")
    if not 0 < hours <= 24 * 31:
        raise BadInput(f"{hours:g} hours: simulate more than 0 and at most a month (744)")
    twist = msgspec.convert(table["scenarios"][name], Twist)
    tenants = msgspec.convert(table["tenants"], dict[str, SimulatedTenant])
    if twist.hostile:
        tenants["hostile"] = msgspec.convert(table["hostile"], SimulatedTenant)
    services = msgspec.convert(table["services"], Services)
    return Scenario(
        name,
        nodes,
        hours,
        seed,
        machines=msgspec.convert(table["machines"], dict[str, MachineKind]),
        faults=msgspec.convert(table["faults"], SimulatedFaults),
        tenants={key: _twisted(tenant, twist) for key, tenant in tenants.items()},
        services=replace(services, load=services.load * twist.load, day=services.day * twist.day),
        twist=twist,
    )


def _twisted(tenant: SimulatedTenant, twist: Twist) -> SimulatedTenant:
    return replace(tenant, load=tenant.load * twist.load, day=tenant.day * twist.day)


def _table() -> dict[str, dict[str, object]]:
    return tomllib.loads(TABLE.read_text())
