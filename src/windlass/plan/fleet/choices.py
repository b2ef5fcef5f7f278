"""The names that a plan request may use: devices, published sizes, objectives, precisions."""

from __future__ import annotations

from typing import Any, get_args

from windlass.plan.cost.catalogue import PROCESSOR, devices
from windlass.plan.cost.models import ServedShape, models
from windlass.plan.cost.step_config import Device, Precision
from windlass.plan.fleet.explore import Objective
from windlass.plan.fleet.fleet_search import SearchName


def choices() -> dict[str, Any]:
    """Return all names, with what helps to choose among them."""
    return {
        "devices": [_device(device) for device in devices().values()],
        "sizes": [_sizes(model) for model in sorted(models().values(), key=lambda m: m.sizes.parameters)],
        "objectives": list(get_args(Objective)),
        "precisions": list(get_args(Precision)),
        "searches": list(get_args(SearchName)),
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "precisions": list(device.peak_flops),
        "dollars_h": device.dollars_h,
        "accelerator": not device.name.startswith(PROCESSOR),
    }


def _sizes(model: ServedShape) -> dict[str, Any]:
    sizes = model.sizes
    return {
        "name": model.name,
        "parameters": sizes.parameters,
        "layers": sizes.layers,
        "width": sizes.width,
        "vocabulary": sizes.vocabulary,
        "experts": sizes.experts,
    }
