"""The simulated nodes, tenants, services and faults (scenarios.toml)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from windlass.control.scheduler.snapshot import MemberResources
from windlass.spec.errors import BadInput, did_you_mean

TABLE = Path(__file__).with_name("scenarios.toml")
GIB = 1 << 30
MIN_NODES, MAX_NODES = 10, 100_000


@dataclass(frozen=True)
class MachineKind:
    """A kind of equal nodes."""

    part: float
    cores: float
    memory_gib: int
    gpus: int

    @property
    def total(self) -> MemberResources:
        return MemberResources(self.cores, self.memory_gib * GIB, self.gpus)


@dataclass(frozen=True)
class SimulatedFaults:
    """How often nodes fail, how long repairs take, and how slow nodes and starts are."""

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
    """The jobs of a tenant, and how often they are submitted."""

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
    min_share: float | None = None
    priority: int = 0
    urgent: float = 0.0
    max_priority: int | None = None
    begins_hour: float = 0.0

    @property
    def need(self) -> MemberResources:
        return MemberResources(self.cores, self.memory_gib * GIB, self.gpus)


@dataclass(frozen=True)
class Services:
    """Served models, each with as many replicas as its load needs."""

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
class ScenarioOverrides:
    """The differences of a scenario from the common table."""

    load: float = 1.0
    day: float = 1.0
    faults: float = 1.0
    outage_hour: float | None = None
    outage_racks: float = 0.0
    hostile: bool = False


@dataclass(frozen=True)
class Scenario:
    """All inputs of a simulation."""

    name: str
    nodes: int
    hours: float
    seed: int
    machines: dict[str, MachineKind]
    faults: SimulatedFaults
    tenants: dict[str, SimulatedTenant]
    services: Services
    overrides: ScenarioOverrides = ScenarioOverrides()
    period_s: float = 30.0
    """Seconds between two steps of the control plane."""

    @property
    def end_s(self) -> float:
        return self.hours * 3600.0


def names() -> list[str]:
    return list(_table()["scenarios"])


def scenario_of(name: str, nodes: int, hours: float, seed: int) -> Scenario:
    """Read a scenario, scaled to this many nodes."""
    table = _table()
    if name not in table["scenarios"]:
        raise BadInput(f"there is no scenario '{name}'", hint=did_you_mean(name, list(table["scenarios"])))
    if not MIN_NODES <= nodes <= MAX_NODES:
        raise BadInput(f"{nodes} nodes: a fleet has {MIN_NODES} to {MAX_NODES:,}")
    if not 0 < hours <= 24 * 31:
        raise BadInput(f"{hours:g} hours: simulate more than 0 and at most a month (744)")
    overrides = msgspec.convert(table["scenarios"][name], ScenarioOverrides)
    tenants = msgspec.convert(table["tenants"], dict[str, SimulatedTenant])
    if overrides.hostile:
        tenants["hostile"] = msgspec.convert(table["hostile"], SimulatedTenant)
    services = msgspec.convert(table["services"], Services)
    return Scenario(
        name,
        nodes,
        hours,
        seed,
        machines=msgspec.convert(table["machines"], dict[str, MachineKind]),
        faults=msgspec.convert(table["faults"], SimulatedFaults),
        tenants={key: _overridden(tenant, overrides) for key, tenant in tenants.items()},
        services=replace(services, load=services.load * overrides.load, day=services.day * overrides.day),
        overrides=overrides,
    )


def _overridden(tenant: SimulatedTenant, overrides: ScenarioOverrides) -> SimulatedTenant:
    return replace(tenant, load=tenant.load * overrides.load, day=tenant.day * overrides.day)


def _table() -> dict[str, dict[str, object]]:
    return tomllib.loads(TABLE.read_text())
