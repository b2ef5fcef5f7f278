"""What a run costs: money for devices by the hour, and energy.

The price of one device spreads four to ten times between sellers, so a cost is a range and never one number;
where one is needed to compare, it is the geometric middle.

Energy is devices x watts x load x PUE. `load` is the mean power of a device with its share of the host, as
a share of the device's rated power: about 1.1 for V100 machines that train (330 W of 300 W, Patterson et al.
2021, arXiv:2104.10350, table 4). PUE is what the building adds: 1.2 in the machine room that trained BLOOM
(Luccioni et al. 2022, arXiv:2211.02001), 1.1 in the best, 1.6 on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windlass.plan.cost.step_config import Device
from windlass.spec.errors import BadInput

PUE = 1.2
LOAD = 1.1
HOUR_S = 3600.0


@dataclass(frozen=True)
class Prices:
    """Prices and power; None means the value of the catalogue, if it has one."""

    dollars_h: tuple[float, float] | None = None
    """Of one device; overrides the catalogue."""
    dollars_kwh: float | None = None
    """Of energy, for owned machines; rented devices include it."""
    watts: float | None = None
    """Of one device, rated; overrides the catalogue."""
    pue: float = PUE
    load: float = LOAD

    def __post_init__(self) -> None:
        if self.dollars_h is not None:
            low, high = self.dollars_h
            _check(0 <= low <= high, f"a price from {low} to {high} dollars an hour", "0 <= low <= high")
        _check((self.dollars_kwh or 0) >= 0, f"a price of {self.dollars_kwh} dollars a kWh", "0 or more")
        _check((self.watts or 0) >= 0, f"a power of {self.watts} W", "0 or more")
        _check(self.pue >= 1, f"a PUE of {self.pue}", "1 (nothing but the machines) or more")
        _check(self.load > 0, f"a load of {self.load}", "a share of the rated power, such as 1.1")


@dataclass(frozen=True)
class RunCost:
    """Of a whole run."""

    device_hours: float
    dollars: tuple[float, float] | None
    """None if no price is known."""
    kwh: float | None

    @property
    def middle(self) -> float | None:
        """One number to compare by."""
        return None if self.dollars is None else middle(self.dollars)


def cost_of(seconds: float, devices: int, device: Device, prices: Prices | None = None) -> RunCost:
    """Return the cost of `devices` of one kind for `seconds`; without `prices`, by the catalogue."""
    prices = prices or Prices()
    _check(devices > 0, f"{devices} devices", "at least 1")
    _check(seconds >= 0, f"a run of {seconds} s", "0 or more")
    hours = devices * seconds / HOUR_S
    watts = prices.watts if prices.watts is not None else device.watts
    kwh = None if watts is None else hours * watts * prices.load * prices.pue / 1000
    rate = prices.dollars_h or device.dollars_h
    energy = (kwh or 0.0) * (prices.dollars_kwh or 0.0)
    if rate is not None:
        dollars: tuple[float, float] | None = (hours * rate[0] + energy, hours * rate[1] + energy)
    elif prices.dollars_kwh is not None and kwh is not None:
        dollars = (energy, energy)
    else:
        dollars = None
    return RunCost(hours, dollars, kwh)


def added(costs: list[RunCost]) -> RunCost:
    """Return the sum over unequal parts of a fleet; unknown if any part is unknown."""
    priced = [cost.dollars for cost in costs if cost.dollars is not None]
    metered = [cost.kwh for cost in costs if cost.kwh is not None]
    return RunCost(
        device_hours=sum(cost.device_hours for cost in costs),
        dollars=(sum(p[0] for p in priced), sum(p[1] for p in priced)) if len(priced) == len(costs) else None,
        kwh=sum(metered) if len(metered) == len(costs) else None,
    )


def middle(dollars: tuple[float, float]) -> float:
    """Return the geometric middle of a price range: as many times above the low end as below the high."""
    return math.sqrt(dollars[0] * dollars[1])


def format_dollars(dollars: tuple[float, float] | float | None) -> str:
    """Write money for people: "$1,200 to $4,800"."""
    if dollars is None:
        return "unknown"
    if isinstance(dollars, tuple):
        low, high = format_dollars(dollars[0]), format_dollars(dollars[1])
        return low if low == high else f"{low} to {high}"
    return f"${dollars:,.0f}" if dollars >= 100 else f"${dollars:,.2f}"


def _check(holds: bool, what: str, right: str) -> None:
    if not holds:
        raise BadInput(f"plan: {what} is not possible", hint=f"it must be {right}")
