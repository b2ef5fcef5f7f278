"""Constants of the step-time model: what no data sheet says, fitted to published measurements.

`tables/known.toml` holds them (`windlass plan published --refit` writes it): one value of each for software
without measurements, and the factors of each generation of software. They are few and physical, so
that they hold for clusters which no row came from. A generation that no row was fitted to is taken for its
neighbour, or for the default: what `tables/software.toml` expects of it was written with its rows in sight.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from windlass.plan.cost.software_defaults import SOFTWARE
from windlass.plan.cost.step_inputs import Number

TABLE = Path(__file__).parents[1] / "tables" / "known.toml"


@dataclass(frozen=True)
class StepConstants:
    """Defaults are the prior of the fit: the expectation before any measurement."""

    product: Number = 0.90
    """Share of the reachable rate that a large product within a model gets."""
    shape: Number = 1.0
    """Weight of memory traffic in a product (roofline)."""
    float8: Number = 0.92
    float4: Number = 0.80
    """Share of their own peak that quantised products get, over that of others."""
    casts: Number = 1.5
    """Passes over activations and gradients to quantise them, in 2 bytes read and written for one of them."""
    experts: Number = 0.8
    """Rate of the products of many small experts over that of one product."""
    ep_exposed: Number = 0.7
    """Share of the tokens' way to experts and back that nothing hides."""
    flash: Number = 0.62
    """Share of the peak that fused attention reaches on an A100."""
    batched: Number = 0.50
    """The same for attention as separate products."""
    softmax: Number = 1.0
    """Passes over the matrix of scores, over those counted."""
    elementwise: Number = 1.0
    """Passes over activations, over those counted."""
    launch_s: Number = 0.75e-3
    """Of the host for the forward pass of one layer."""
    eager: Number = 1.5
    """Times that where nothing is fused: norms, rotations and activations are several kernels each."""
    link: Number = 0.75
    network: Number = 0.70
    """Share of the stated rate that collectives get."""
    link_latency_s: Number = 3.4e-6
    network_latency_s: Number = 14e-6
    """Of one step of a ring, within a machine and to the next one: those of NCCL's own tuning.cc (Simple)."""
    congestion: Number = 0.1
    """Share by which the network is slower for each doubling of the machines that share it."""
    tp_exposed: Number = 0.9
    """Share of tensor parallelism's exchanges that nothing hides."""
    tp_overlapped: Number = 0.5
    """Share of that where software cuts products to hide it."""
    dp_exposed: Number = 0.4
    """Share of the gradients' exchange that the backward pass does not hide."""
    divided_exposed: Number = 0.8
    """The same where the optimizer is divided: gradients are scattered, its step made, weights gathered."""
    gather_exposed: Number = 0.15
    """The same of weights gathered layer by layer (FSDP)."""
    send_exposed: Number = 1.0
    """Share of what a pipeline sends that nothing hides."""
    send_s: Number = 0.2e-3
    """Of the host for what a stage sends and awaits, in each direction."""
    optimizer: Number = 1.3
    """Passes over the optimizer's state, over those counted."""
    straggle: Number = 0.006
    """Share by which a step is longer for each doubling of the machines."""
    step_s: Number = 0.01
    """Of the host for a step, whatever it computes."""


@dataclass(frozen=True)
class FittedConstants:
    """Constants by generation of software, and their errors."""

    default: StepConstants = StepConstants()
    generations: dict[str, dict[str, float]] = field(default_factory=dict)
    """What a generation multiplies constants by."""
    low: float = 0.7
    high: float = 1.5
    """Factors on a prediction between which nine in ten measurements lay, of sources that were left out."""
    sets: tuple[str, ...] = ()
    """Sources that the constants were fitted to."""

    @cached_property
    def _found(self) -> dict[str, StepConstants]:
        return {}

    def constants(self, software: str) -> StepConstants:
        """Return those of a generation; the default for software that is not in the table."""
        found = self._found.get(software)
        if found is None:
            neighbour = NEIGHBOURS.get(software, "")
            factors = self.generations.get(software) or self.generations.get(neighbour, {})
            found = replace(self.default, **{n: getattr(self.default, n) * f for n, f in factors.items()})
            self._found[software] = found
        return found


NEIGHBOURS = {
    "nanotron-2024": "fsdp2-2025-eager",
    "fsdp-2023": "fsdp2-2025-eager",
    "fsdp2-2025-eager": "fsdp-2023",
    "fsdp2-2025": "megatron-core-2025",
    "megatron-core-2025": "fsdp2-2025",
    "llm.c-2024": "megatron-core-2025",
    "megatron-2021": "megatron-deepspeed-2022",
    "megatron-deepspeed-2022": "megatron-2021",
}
"""By kind: eager with eager, fused or compiled with the like, of about the same years."""
NAMES = tuple(one.name for one in fields(StepConstants))


@cache
def published() -> FittedConstants:
    """Read the shipped table."""
    return parse_known(tomllib.loads(TABLE.read_text()))


@cache
def documented() -> dict[str, dict[str, float]]:
    """Read the documented factors of software generations; a fit starts from them."""
    table = tomllib.loads(SOFTWARE.read_text())
    return {
        name: {key: factors[key] for key in factors if key != "habits"} for name, factors in table.items()
    }


def parse_known(table: dict[str, Any]) -> FittedConstants:
    return FittedConstants(
        StepConstants(**table["default"]),
        table["generations"],
        table["low"],
        table["high"],
        tuple(table["sets"]),
    )


def format_known(known: FittedConstants) -> str:
    """Return the table as TOML."""
    lines = ["# Written by `windlass plan published --refit`; see cost/fitted_constants.py.", ""]
    lines += [
        f"low = {known.low:.4g}",
        f"high = {known.high:.4g}",
        f"sets = {json.dumps(known.sets)}",
        "",
        "[default]",
    ]
    lines += [f"{name} = {getattr(known.default, name):.4g}" for name in NAMES]
    for software, factors in sorted(known.generations.items()):
        lines += ["", f'[generations."{software}"]']
        lines += [f"{name} = {factor:.4g}" for name, factor in factors.items()]
    return "\n".join(lines) + "\n"
