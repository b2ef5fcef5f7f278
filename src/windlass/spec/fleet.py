"""A fleet: the machines that a plan may use, equal or not, and what they cost.

Input: a TOML file (docs/formats/fleet.md), or a few words like "64xH100-SXM5" or "64xH100+32xA100". Output: a
Fleet. The planner takes what is left out from its catalogue of devices, which this module does not know.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from windlass.spec.config_model import ConfigModel
from windlass.spec.errors import BadInput, NotFound
from windlass.spec.read import parse, read_toml
from windlass.spec.units import parse_bytes, parse_seconds

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]

PER_MACHINE = 8
"""Devices of a machine if a fleet in words does not say."""
_WORDS = re.compile(r"\s*([0-9]+)\s*[xX*]\s*(\S+)\s*")


class Machines(ConfigModel):
    """A group of equal machines."""

    device: str = Field(description="what computes in them, as the catalogue names it")
    count: Annotated[int, Field(ge=1)] = Field(1, description="number of machines")
    devices: Annotated[int, Field(ge=1)] = Field(PER_MACHINE, description="devices in each machine")
    memory: Bytes | None = Field(None, description="memory of one device, e.g. '80GB'")
    link: Bytes | None = Field(None, description="bytes a second between devices of a machine, e.g. '450GB'")
    network: Bytes | None = Field(None, description="bytes a second to other machines, of one device")
    price_h: float | tuple[float, float] | None = Field(
        None, description="dollars an hour of one device, or the lowest and the highest"
    )
    watts: Annotated[float, Field(gt=0)] | None = Field(None, description="power of one device")
    mtbf: Seconds | None = Field(None, description="mean time between failures of one device, e.g. '50000h'")

    @field_validator("price_h")
    @classmethod
    def _is_a_price(cls, price: float | tuple[float, float] | None) -> tuple[float, float] | None:
        if price is None:
            return None
        low, high = price if isinstance(price, tuple) else (price, price)
        if low < 0 or high < low or high == float("inf"):
            raise ValueError(
                f"{low:g} to {high:g} is not a price in dollars an hour; it must be zero or more"
            )
        return low, high

    @property
    def total(self) -> int:
        """Devices in all machines of the group."""
        return self.count * self.devices

    @property
    def prices(self) -> tuple[float, float] | None:
        """Lowest and highest dollars an hour."""
        return self.price_h if isinstance(self.price_h, tuple) else None


class Fleet(ConfigModel):
    """All machines that a plan may use."""

    machines: tuple[Machines, ...] = Field(description="groups of equal machines")
    network: Bytes | None = Field(
        None, description="bytes a second between groups, of one device; the slower of two groups' otherwise"
    )
    store: Bytes = Field(
        20_000_000_000, description="bytes a second that the checkpoint store takes from all writers together"
    )
    restart: Seconds | None = Field(None, description="from a failure until processes run again, e.g. '10m'")
    pue: Annotated[float, Field(ge=1)] | None = Field(
        None, description="power of the building over power of the machines"
    )
    dollars_kwh: Annotated[float, Field(ge=0)] | None = Field(
        None, description="price of energy, for machines that you own"
    )

    @field_validator("machines")
    @classmethod
    def _has_some(cls, machines: tuple[Machines, ...]) -> tuple[Machines, ...]:
        if not machines:
            raise ValueError("a fleet needs at least one group of machines")
        return machines

    @property
    def devices(self) -> int:
        return sum(group.total for group in self.machines)


def fleet_of(text: str, price_h: float | None = None) -> Fleet:
    """Read a fleet file, or words like "64xH100-SXM5"; `price_h` replaces the price of all devices."""
    in_a_file = text.endswith(".toml") or Path(text).is_file()
    fleet = read_fleet(Path(text)) if in_a_file else fleet_in_words(text)
    if price_h is None:
        return fleet
    priced = [{**group.model_dump(), "price_h": price_h} for group in fleet.machines]
    return parse(Fleet, {**fleet.model_dump(), "machines": priced}, "--price")


def fleet_in_words(text: str) -> Fleet:
    """Read words like "64xH100+32xA100", never a file."""
    return parse(Fleet, {"machines": [_group(part) for part in text.split("+")]}, f"--fleet {text}")


def read_fleet(path: Path) -> Fleet:
    """Read and check a fleet file."""
    if not path.exists():
        raise NotFound(f"{path}: no such fleet file", hint="or say it in words: --fleet 64xH100-SXM5")
    return parse(Fleet, read_toml(path), str(path))


def _group(text: str) -> dict[str, Any]:
    """Read "64xH100-SXM5": so many devices, eight to a machine where that comes out even."""
    match = _WORDS.fullmatch(text)
    if match is None:
        raise BadInput(
            f"--fleet {text}: neither a fleet file nor a number of devices",
            hint="write it like 64xH100-SXM5 or 64xH100+32xA100; docs/formats/fleet.md has the file",
        )
    number, device = int(match[1]), match[2]
    if number == 0:
        raise BadInput(f"--fleet {text}: a fleet of no devices trains nothing", hint="give at least 1")
    each = next(size for size in (PER_MACHINE, 4, 2, 1) if number % size == 0)
    return {"device": device, "count": number // each, "devices": each}
