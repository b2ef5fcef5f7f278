"""Times of collectives: rings, sends, all-to-all; within a machine and between machines.

A collective costs a latency for every step of a ring, and the time of the bytes that the slowest link has to
carry (Thakur et al. 2005; bus bandwidth in NCCL's tests). Between machines a group has as many network cards
as it has devices in each machine. Arithmetic only, on numbers or on arrays.
"""

from __future__ import annotations

from windlass.plan.cost.fitted_constants import StepConstants
from windlass.plan.cost.step_inputs import DeviceGroup, Number, StepInputs

BASE_S = 8.4e-6
"""Of a collective before its first step (NCCL's tuning.cc)."""


def larger(a: Number, b: Number) -> Number:
    """Return the larger of two numbers, or of each pair in arrays; numpy takes longer for numbers."""
    return (a + b + abs(a - b)) / 2


def ring_s(x: StepInputs, known: StepConstants, size: Number, group: DeviceGroup) -> Number:
    """Time of a reduce-scatter or an all-gather of `size` bytes; an all-reduce is two of them."""
    carried = size * (1 - 1 / group.members)
    link = carried / (x.link_bytes_s * known.link)
    network = carried / (group.inside * x.network_bytes_s * known.network)
    crowded = (group.inside < group.members) * (1 + known.congestion * group.far_doublings)
    return link + crowded * network + latency_s(known, group)


def exchange_s(
    x: StepInputs, known: StepConstants, size: Number, far_size: Number, group: DeviceGroup
) -> Number:
    """Time of an all-to-all: every device sends `size` bytes, of which `far_size` go to other machines."""
    within = size * (1 - 1 / group.members) / (x.link_bytes_s * known.link)
    between = far_size / (x.network_bytes_s * known.network)
    return larger(within, between) + latency_s(known, group)


def latency_s(known: StepConstants, group: DeviceGroup) -> Number:
    """Latency of a ring as NCCL reckons it (src/graph/tuning.cc): its steps within machines and between.

    Gathering and scattering know nothing but rings there. Sums over many machines go by trees, but those are
    of gradients, whose bytes take far longer.
    """
    machines = group.members / group.inside
    links = known.link_latency_s * (group.members - machines)
    return (group.members > 1) * BASE_S + links + known.network_latency_s * (machines - 1)


def send_s(x: StepInputs, known: StepConstants, size: Number, inside: Number) -> Number:
    """Time of sending `size` bytes to a neighbour, within the machine or not."""
    link = size / (x.link_bytes_s * known.link) + known.link_latency_s
    network = size / (x.network_bytes_s * known.network) + known.network_latency_s
    return inside * link + (1 - inside) * network
