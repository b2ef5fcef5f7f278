"""Devices that plans can be made for: a table of facts, each with its source (tables/devices.toml).

Prices of one device differ by four to ten times between sellers, so a device carries a range, that of the
cheaper kind of seller; another price can be given in the fleet file.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from windlass.plan.cost.step_config import Device
from windlass.spec.errors import NotFound, nearest

TABLE = Path(__file__).parents[1] / "tables" / "devices.toml"
PROCESSOR = "CPU-"
"""How names of processors begin; all others are accelerators."""


@cache
def devices() -> dict[str, Device]:
    """Return every device by its own name."""
    return {name: _device(name, entry) for name, entry in _table().items()}


def device_named(name: str) -> Device:
    """Return the device of this name or alias, whatever the case of its letters."""
    known = {alias.lower(): own for own, entry in _table().items() for alias in (own, *_aliases(entry))}
    own = known.get(name.lower())
    if own is not None:
        return devices()[own]
    close = nearest(name, [*known]) or next((a for a in known if name.lower() in a), None)
    hint = f"did you mean '{known[close]}'?" if close else "known: " + ", ".join(devices())
    raise NotFound(f"device '{name}' is not in the catalogue", hint=hint)


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(TABLE.read_text())


def _aliases(entry: dict[str, Any]) -> list[str]:
    return list(entry.get("aliases", ()))


def _device(name: str, entry: dict[str, Any]) -> Device:
    price = entry.get("neocloud_h") or entry.get("hyperscaler_h")
    reached = entry.get("reached")
    return Device(
        name=name,
        peak_flops={precision: value * 1e12 for precision, value in entry["tflops"].items()},
        memory_bytes=entry["memory_gb"] * 2**30,  # makers print GB for GiB
        memory_bytes_s=entry["memory_gb_s"] * 1e9,
        link_bytes_s=entry["link_gb_s"] * 1e9,
        network_bytes_s=entry["network_gb_s"] * 1e9,
        domain=entry.get("domain", 8),
        watts=entry.get("watts"),
        dollars_h=(price[0], price[1]) if price else None,
        reachable_flops=reached * 1e12 if reached else None,
    )
