"""The device of a published row: the accelerator by its name, its network by the interconnect column.

Input: the cells `gpu`, `interconnect` and `gpus_per_node`. Output: a Device, or None for a name that is
not in the catalogue. The network of one kind of accelerator differs between clusters by a factor of four, so
the row takes precedence over the catalogue.
"""

from __future__ import annotations

import re
from dataclasses import replace

from windlass.plan.cost.catalogue import device_named
from windlass.plan.cost.step_config import Device
from windlass.spec.errors import NotFound

_PER_NODE = re.compile(r"(?:(\d+)x)?(\d+) Gbit/s(?: [A-Za-z-]+)* per node")
_PER_DEVICE = re.compile(r"(\d+) Gbit/s(?: [A-Za-z-]+)* per GPU")


def row_device(name: str, interconnect: str, per_machine: int) -> Device | None:
    """Return the accelerator with the network of the row."""
    try:
        device = device_named(name)
    except NotFound:
        return None
    stated = _network_bytes_s(interconnect, per_machine)
    return device if stated is None else replace(device, network_bytes_s=stated)


def _network_bytes_s(interconnect: str, per_machine: int) -> float | None:
    """Parse "400 Gbit/s NDR IB per GPU" or "4x100 Gbit/s Omni-Path per node" as bytes/s of one device."""
    if found := _PER_DEVICE.search(interconnect):
        return float(found[1]) * 1e9 / 8
    if found := _PER_NODE.search(interconnect):
        return float(found[1] or 1) * float(found[2]) * 1e9 / 8 / per_machine
    return None
