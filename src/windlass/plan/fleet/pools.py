"""A fleet with every figure known: groups of equal devices, from the fleet file and the catalogue."""

from __future__ import annotations

from dataclasses import dataclass, replace

from windlass.plan.cost.catalogue import device_named
from windlass.plan.cost.goodput import DEVICE_MTBF_S, RESTART_S, Failures
from windlass.plan.cost.money import PUE, Prices
from windlass.plan.cost.step_config import Device
from windlass.spec.fleet import Fleet, Machines


@dataclass(frozen=True)
class DevicePool:
    """Equal devices on equal machines."""

    device: Device
    devices: int
    per_machine: int
    prices: Prices
    failures: Failures
    store_bytes_s: float

    def of(self, devices: int) -> DevicePool:
        """Return as many devices of the same kind, on machines as full as they can be."""
        return replace(self, devices=devices, per_machine=min(self.per_machine, devices))


def pools_of(fleet: Fleet) -> tuple[DevicePool, ...]:
    """Return one pool for each group of machines."""
    return tuple(_pool(fleet, group) for group in fleet.machines)


def _pool(fleet: Fleet, group: Machines) -> DevicePool:
    known = device_named(group.device)
    device = replace(
        known,
        memory_bytes=group.memory or known.memory_bytes,
        link_bytes_s=group.link or known.link_bytes_s,
        network_bytes_s=group.network or known.network_bytes_s,
        watts=group.watts or known.watts,
        dollars_h=group.prices or known.dollars_h,
    )
    return DevicePool(
        device=device,
        devices=group.total,
        per_machine=group.devices,
        prices=Prices(dollars_kwh=fleet.dollars_kwh, pue=fleet.pue or PUE),
        failures=Failures(mtbf_s=group.mtbf or DEVICE_MTBF_S, restart_s=fleet.restart or RESTART_S),
        store_bytes_s=float(fleet.store),
    )
