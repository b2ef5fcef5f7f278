"""Time to first token and time per token of a served model.

Input: a model on a replica of devices, a request with its numbers of tokens in and out, and the number
of concurrent requests. Output: seconds to the first token, seconds a token, and what they are made of.

Prefill is bound by arithmetic: 2 FLOPs a weight and token, plus the scores (Kaplan et al. 2020,
arXiv:2001.08361, table 1). A decoding step is bound by memory: it reads every weight that any request of
the batch meets, and the keys and values of all of them, once (Pope et al. 2022, arXiv:2211.05102, section 2).
Tensor parallelism adds two all-reduces a layer. A request that decodes is held up by the prefill of those
that come meanwhile; a request that comes waits for those before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from windlass.plan.cost.models import ServedShape
from windlass.plan.cost.step_config import Device
from windlass.plan.serving.fitted_constants import Reach

Number = Any
"""A float, or a float64 array; numpy's own types cannot say "either, and the same comes out"."""
WeightFormat = Literal["bfloat16", "float8", "float4", "int4"]
FORMATS: tuple[WeightFormat, ...] = ("bfloat16", "float8", "float4", "int4")
WEIGHT_BYTES: dict[WeightFormat, float] = {
    "bfloat16": 2.0, "float8": 1.0, "float4": 0.5625, "int4": 0.5625,
}  # fmt: skip
"""Four-bit formats carry a byte of scale for every 16 weights."""
ROPE_WIDTH = 64
"""Of the positions that latent attention keeps beside its compressed keys and values."""
USABLE_MEMORY = 0.95
"""Share of a device's memory that engines were given where memory was short; what is left is the driver's."""
WORKSPACE_BYTES = 4e9
"""Activations of a pass, and captured graphs."""


@dataclass(frozen=True)
class ModelReplica:
    """A copy of the model on some devices."""

    model: ServedShape
    device: Device
    weights: WeightFormat = "bfloat16"
    cache_bytes: float = 2.0
    """Of one number of the keys and values."""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    """Groups of `tp` devices that share experts, but have requests of their own."""

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    @cached_property
    def peak_flops(self) -> float:
        """Arithmetic runs in the weights' own format where the device can, else weights are unpacked."""
        peaks = self.device.peak_flops
        own = peaks.get(self.weights)
        return own or peaks.get("bfloat16") or peaks.get("float16") or peaks["float32"]

    @cached_property
    def _other_bytes(self) -> float:
        """Bytes of a weight outside experts; four-bit models with experts keep those in 16 bits."""
        small = WEIGHT_BYTES[self.weights] < 1 and self.model.sizes.experts > 0
        return 2.0 if small else WEIGHT_BYTES[self.weights]

    @cached_property
    def shared_bytes(self) -> float:
        """Weights that every request meets."""
        return self._other_bytes * (self.model.shared_weights + self.model.head_weights)

    def expert_bytes(self, tokens: float) -> float:
        """Bytes of the experts that a pass of `tokens` tokens uses, if each picks evenly at random."""
        sizes = self.model.sizes
        if not sizes.experts:
            return 0.0
        met = sizes.experts * (1 - math.pow(1 - sizes.top_k / sizes.experts, tokens))
        each = WEIGHT_BYTES[self.weights] * sizes.ffn_weights(sizes.expert_width)
        return self.model.sparse_layers * met * each

    @cached_property
    def token_cache_bytes(self) -> float:
        """Keys and values of one token, in all layers, on each device of a `tp` group.

        Heads are divided among devices, but no further than there are heads; latent ones are not divided.
        """
        sizes = self.model.sizes
        if sizes.latent is not None:
            return self.cache_bytes * sizes.layers * (sizes.latent[1] + ROPE_WIDTH)
        heads = max(1.0, sizes.kv_heads / self.tp)
        return self.cache_bytes * sizes.layers * 2 * heads * sizes.head_width

    @cached_property
    def weight_bytes_each(self) -> float:
        """Weights on each device."""
        embedding = self._other_bytes * self.model.head_weights
        shared = (self.shared_bytes + embedding) / (self.tp * self.pp)
        return shared + self.expert_bytes(math.inf) / self.devices

    def room(self, context: float) -> int:
        """Requests of this many tokens whose keys and values fit beside the weights, in the replica."""
        free = USABLE_MEMORY * self.device.memory_bytes - WORKSPACE_BYTES - self.weight_bytes_each
        each = self.token_cache_bytes * self.model.seen(context) / self.pp
        return max(0, int(free / each)) * self.dp


@dataclass(frozen=True)
class ForwardPass:
    """What one pass through the model asks of each device; seconds at its full speed.

    Fields are numbers, or arrays of them over many cases: `seconds` and `crowd` do not care, which makes
    fitting constants to thousands of rows quick.
    """

    compute_s: Number
    grouped_s: Number
    """Arithmetic of experts, in products of a few tokens each."""
    read_s: Number
    moved_s: Number
    layers: Number
    sparse: Number
    """Layers with experts among them."""
    hops: Number
    """Steps of latency in all-reduces."""

    def seconds(self, reach: Reach) -> Number:
        return (
            self.compute_s / reach.compute
            + self.grouped_s / reach.grouped
            + self.read_s / reach.bandwidth
            + self.moved_s
            + self.layers * reach.layer_s
            + self.sparse * reach.sparse_s
            + self.hops * reach.hop_s
        )


@dataclass(frozen=True)
class ClosedLoop:
    """A fixed number of clients, each of which sends its next request when one is answered."""

    output: Number
    running: Number
    """Requests that have a place in memory, of one group of devices."""
    waiting: Number
    """Requests for every one that runs that have none."""
    stages: Number
    prefill: ForwardPass
    decode: ForwardPass


@dataclass(frozen=True)
class Latency:
    """Latencies of one request."""

    first_s: Number
    token_s: Number
    parts: dict[str, Number]

    def request_s(self, output: int) -> float:
        """From the request to the last token."""
        return float(self.first_s + (output - 1) * self.token_s)


def latency(replica: ModelReplica, given: int, output: int, concurrency: float, reach: Reach) -> Latency:
    """Predict the time to the first token and of every other one, with `concurrency` requests at a time."""
    return latency_of(crowd(replica, given, output, concurrency), reach)


def latency_of(crowd: ClosedLoop, reach: Reach) -> Latency:
    """Predict latencies: during a request all other requests are prefilled once, which delays decoding.

    A request that comes waits as in an M/D/1 queue (Kleinrock 1975, vol. 1, section 5.6) at the load that
    prefill makes, and for the share of the crowd that moves in step with it. Requests beyond the memory
    wait for a place.
    """
    prefill, step = crowd.prefill.seconds(reach), crowd.decode.seconds(reach)
    busy = prefill / crowd.stages
    stolen = reach.stolen * (crowd.running - 1) * busy / crowd.output
    load = crowd.running * busy / (crowd.output * step + crowd.running * busy)
    queue = busy * load / (2 * (1 - load)) + reach.bunched * (crowd.running - 1) / 2 * busy
    inside = reach.request_s + prefill + queue
    outside = crowd.waiting * (inside + (crowd.output - 1) * (step + stolen))
    parts = {"prefill": prefill, "queue": queue, "outside": outside, "decode": step, "stolen": stolen}
    return Latency(inside + outside, step + stolen, parts)


def crowd(replica: ModelReplica, given: int, output: int, concurrency: float) -> ClosedLoop:
    """Return the load that `concurrency` requests put on a replica."""
    context = given + output / 2  # requests are at all stages of their answers, so this is what each keeps
    running = min(concurrency, max(1, replica.room(context)))
    return ClosedLoop(
        output=output,
        running=max(1.0, running / replica.dp),
        waiting=(concurrency - running) / running,
        stages=replica.pp,
        prefill=prefill_pass(replica, given),
        decode=decode_pass(replica, running, context),
    )


def prefill_pass(replica: ModelReplica, tokens: float) -> ForwardPass:
    """The tokens of one request, on a group of devices; only the last one needs the head."""
    sizes = replica.model.sizes
    scores = 4 * sizes.layers * sizes.heads * sizes.head_width * replica.model.seen(tokens) / 2
    flops = tokens * (2 * replica.model.shared_weights + scores) + 2 * replica.model.head_weights
    return _pass(replica, tokens, flops, read_bytes=0.0)


def decode_pass(replica: ModelReplica, requests: float, context: float) -> ForwardPass:
    """A step in which `requests` of the replica get a token each."""
    together = max(1.0, requests / replica.pp)
    group = max(1.0, together / replica.dp)
    read = replica.shared_bytes / replica.tp + replica.expert_bytes(together) / (replica.tp * replica.dp)
    read += group * replica.model.seen(context) * replica.token_cache_bytes
    flops = 2 * group * (replica.model.shared_weights + replica.model.head_weights)
    return _pass(replica, group, flops, read_bytes=read)


def _pass(replica: ModelReplica, tokens: float, flops: float, read_bytes: float) -> ForwardPass:
    """Add to the arithmetic that of experts, and the exchanges of divided devices.

    That is two ring all-reduces a layer, in each of which a device sends 2 (n - 1) / n of the bytes
    (Patarasuk and Yuan 2009), and what stages hand on.
    """
    device, sizes, tp = replica.device, replica.model.sizes, replica.tp
    sparse = replica.model.sparse_layers
    experts = sparse * sizes.ffn_weights(sizes.top_k * sizes.expert_width)
    passing = 2 * tokens * sizes.width
    rate = device.link_bytes_s if tp <= device.domain else device.network_bytes_s
    reduced = sizes.layers * 2 * 2 * (tp - 1) / tp * passing / rate
    return ForwardPass(
        compute_s=flops / (tp * replica.peak_flops),
        grouped_s=tokens * 2 * experts / (tp * replica.peak_flops),
        read_s=read_bytes / device.memory_bytes_s,
        moved_s=reduced + (replica.pp - 1) * passing / device.network_bytes_s,
        layers=sizes.layers,
        sparse=sparse,
        hops=2 * sizes.layers * math.log2(tp),
    )
