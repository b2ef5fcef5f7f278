"""Finds how many replicas of which layout serve some traffic in time, at the lowest cost.

Input: a model, devices, the shape of the traffic and targets. Output: layouts that meet them, cheapest
first; or the target that none meets, what the nearest layout reaches, and what would help.

Of every layout the largest number of requests at a time is taken at which both targets hold; more of them
share the weights that a step reads, so that is the cheapest. Independent arrivals vary: a replica with
room for n requests is given m on average with m + 1.64 sqrt(m) <= n, so that it has more than n for
one twentieth of the time (Poisson; Whitt 1992, square-root staffing).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windlass.plan.cost.models import ServedShape
from windlass.plan.cost.step_config import Device
from windlass.plan.serving.fitted_constants import Reach
from windlass.plan.serving.times import Latency, ModelReplica, WeightFormat, latency
from windlass.spec.errors import BadInput
from windlass.spec.units import format_bytes

SURE = 1.64
"""Standard deviations that one twentieth of a normal distribution exceeds."""
MAX_AT_A_TIME = 4096
STAGES = (1, 2, 4)


@dataclass(frozen=True)
class TrafficSpec:
    """The traffic to serve, and its latency targets."""

    given: int
    output: int
    rate: float | None = None
    """Requests per second, arriving independently; or else:"""
    concurrency: int | None = None
    """Concurrent requests (closed loop): each is followed by the next when it is answered."""
    first_s: float = math.inf
    token_s: float = math.inf


@dataclass(frozen=True)
class ServingOption:
    """Replicas that serve the traffic in time."""

    replica: ModelReplica
    replicas: int
    batch: int
    """Maximum concurrent requests of each."""
    latency: Latency
    dollars_h: float | None

    @property
    def devices(self) -> int:
        return self.replicas * self.replica.devices

    @property
    def tokens_s(self) -> float:
        """Tokens a second that all replicas give when full."""
        return self.replicas * self.batch / float(self.latency.token_s)


def cheapest(
    model: ServedShape,
    devices: Sequence[Device],
    weights: WeightFormat,
    traffic: TrafficSpec,
    reach: Reach,
    max_devices: int = 64,
) -> list[ServingOption]:
    """Return what meets the targets on any of several kinds of device, cheapest first.

    A kind that cannot is skipped; where one has no price, numbers of devices are compared.
    """
    found, refused = list[ServingOption](), list[BadInput]()
    for device in devices:
        try:
            found += serving_options(model, device, weights, traffic, reach, max_devices)
        except BadInput as reason:
            refused.append(reason)
    if not found:
        raise refused[0]
    priced = all(one.dollars_h is not None for one in found)
    return sorted(found, key=lambda one: (one.dollars_h if priced else one.devices, one.devices))


def serving_options(
    model: ServedShape,
    device: Device,
    weights: WeightFormat,
    traffic: TrafficSpec,
    reach: Reach,
    max_devices: int = 64,
) -> list[ServingOption]:
    """Return layouts of at most `max_devices` per replica that meet the targets, cheapest first."""
    replicas = list(_replicas(model, device, weights, max_devices))
    fitting = [one for one in replicas if one.room(traffic.given + traffic.output) >= 1]
    if not fitting:
        raise _no_room(replicas, traffic)
    found = [option for one in fitting if (option := _option(one, traffic, reach)) is not None]
    if not found:
        raise _too_slow(fitting, traffic, reach)
    return sorted(found, key=lambda one: (one.devices, one.latency.request_s(traffic.output)))


def _replicas(
    model: ServedShape, device: Device, weights: WeightFormat, max_devices: int
) -> Iterator[ModelReplica]:
    """Yield layouts: tensor parallel within the fast links, stages beyond, groups for models with experts."""
    cache_bytes = 2.0 if weights == "bfloat16" else 1.0
    powers = [1 << n for n in range(12)]
    for tp in (n for n in powers if n <= min(device.domain, max_devices) and model.sizes.heads % n == 0):
        groups = [n for n in powers if tp * n <= device.domain] if model.sizes.experts else [1]
        for dp in groups:
            for pp in STAGES:
                if tp * dp * pp <= max_devices and pp <= model.sizes.layers:
                    yield ModelReplica(model, device, weights, cache_bytes, tp=tp, pp=pp, dp=dp)


def _option(replica: ModelReplica, traffic: TrafficSpec, reach: Reach) -> ServingOption | None:
    max_batch = _largest_batch(replica, traffic, reach)
    if max_batch == 0:
        return None
    if traffic.concurrency is not None:
        number = math.ceil(traffic.concurrency / max_batch)
        batch = math.ceil(traffic.concurrency / number)
    else:
        assert traffic.rate is not None
        number = math.ceil(traffic.rate / _rate(replica, traffic, max_batch, reach))
        wanted = traffic.rate / number
        batch = bisect_left(range(1, max_batch), wanted, key=lambda n: _rate(replica, traffic, n, reach)) + 1
    times = latency(replica, traffic.given, traffic.output, batch, reach)
    price = replica.device.dollars_h
    cost = None if price is None else number * replica.devices * price[0]
    return ServingOption(replica, number, batch, times, cost)


def _rate(replica: ModelReplica, traffic: TrafficSpec, max_batch: int, reach: Reach) -> float:
    """Requests a second of a replica that rarely has more than `max_batch` at a time."""
    times = latency(replica, traffic.given, traffic.output, max_batch, reach)
    return _mean_load(max_batch) / times.request_s(traffic.output)


def _largest_batch(replica: ModelReplica, traffic: TrafficSpec, reach: Reach) -> int:
    """Return the maximum concurrent requests at which both targets hold; both times grow with them."""
    low, high = 0, min(MAX_AT_A_TIME, replica.room(traffic.given + traffic.output))
    while low < high:
        middle = (low + high + 1) // 2
        times = latency(replica, traffic.given, traffic.output, middle, reach)
        met = times.first_s <= traffic.first_s and times.token_s <= traffic.token_s
        low, high = (middle, high) if met else (low, middle - 1)
    return low


def _mean_load(max_batch: int) -> float:
    """Solve m + SURE sqrt(m) = max_batch."""
    root = (-SURE + math.sqrt(SURE**2 + 4 * max_batch)) / 2
    return max(root * root, 0.1)


def _no_room(replicas: list[ModelReplica], traffic: TrafficSpec) -> BadInput:
    """Weights do not fit, or not even one request beside them."""
    smallest = min(replicas, key=lambda one: one.weight_bytes_each)
    tokens = traffic.given + traffic.output
    cache = smallest.token_cache_bytes * smallest.model.seen(tokens) / smallest.pp
    return BadInput(
        f"{smallest.model.name} does not fit on {smallest.device.name}: on {smallest.devices} of them each"
        f" has {format_bytes(smallest.weight_bytes_each)} of weights and {format_bytes(cache)} for a request"
        f" of {tokens} tokens, and {format_bytes(smallest.device.memory_bytes)} of memory",
        hint="take a smaller format (--weights float8), devices with more memory, or more of them"
        " (--max-devices)",
    )


def _too_slow(fitting: list[ModelReplica], traffic: TrafficSpec, reach: Reach) -> BadInput:
    """Say which target no layout meets, even for a single request."""
    alone = [(one, latency(one, traffic.given, traffic.output, 1, reach)) for one in fitting]
    first = min(alone, key=lambda pair: float(pair[1].first_s))
    token = min(alone, key=lambda pair: float(pair[1].token_s))
    if first[1].first_s > traffic.first_s:
        what, best, wanted, by = "the first token", first[1].first_s, traffic.first_s, first[0]
        option = "--ttft"
    elif token[1].token_s > traffic.token_s:
        what, best, wanted, by = "a token", token[1].token_s, traffic.token_s, token[0]
        option = "--per-token"
    else:
        return BadInput(
            "no single layout meets both targets, though each is met by some",
            hint="allow more time for one of them: --ttft or --per-token",
        )
    return BadInput(
        f"no layout gives {what} within {1e3 * wanted:.3g} ms: the quickest ({_words(by)}) takes"
        f" {1e3 * float(best):.3g} ms for a request that is alone",
        hint=f"allow {option} {math.ceil(1.05e3 * float(best))}ms, or take faster devices or smaller weights",
    )


def _words(replica: ModelReplica) -> str:
    return f"tp={replica.tp}, pp={replica.pp}, {replica.weights} on {replica.devices} x {replica.device.name}"
