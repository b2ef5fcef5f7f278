"""`windlass bench gateway`: our gateway with a mock engine, a bare application and LiteLLM's proxy.

    rounds of: small requests, then streams; ours, bare, canned, LiteLLM in turn, with the same client
    then, ours and bare: latency of a request under moderate load, and CPU time per streamed token
    then, ours alone: idle connections

A server has one core, the client and the backend have the other. The machine's speed drifts within minutes,
so ratios are taken within a round, and the figure is the median of the rounds.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from windlass.lab.bench.contenders import Peer
from windlass.lab.bench.gateway_contenders import ENGINE, MODEL, Cores, GatewayContender, bare, litellm, ours
from windlass.lab.bench.gateway_idle import IdleResult, allow_files, hold_idle
from windlass.lab.bench.gateway_load import LoadRequest, LoadResult, ask_once, press, require_wrk
from windlass.lab.bench.gateway_model import PROMPT
from windlass.spec.errors import BadInput
from windlass.spec.protocol.progress import Progress, Report

OURS, BARE, CANNED, LITELLM = ALL = "ours", "bare", "canned", "litellm"
WARM_S, WARM_CONNECTIONS = 2, 2
FLAT_OUT = 2000
"""Tokens per second of one stream: all streams together exceed what any contender can send."""
PATIENT = 4
"""LiteLLM gets this many times longer for streams: it sends tokens slowly, and must finish some streams."""
PACED = 200
"""Tokens per second of one stream, slow enough that every token is a separate wake-up."""


@dataclass(frozen=True)
class GatewayBenchOptions:
    """Sizes and durations of the benchmark."""

    rounds: int = 3
    seconds: int = 4
    connections: int = 32
    streams: int = 32
    idle: int = 10_000

    @property
    def small(self) -> LoadRequest:
        return LoadRequest(self.seconds, self.connections, tokens=16)

    @property
    def streamed(self) -> LoadRequest:
        return LoadRequest(self.seconds, self.streams, tokens=64, stream=True, pace=FLAT_OUT)

    @property
    def paced(self) -> LoadRequest:
        return LoadRequest(self.seconds, self.streams, tokens=PACED // 2, stream=True, pace=PACED)

    @property
    def moderate(self) -> LoadRequest:
        return LoadRequest(self.seconds, 4, tokens=16, pause_ms=10)


@dataclass(frozen=True)
class Leg:
    """One contender under one kind of load."""

    contender: str
    order: str
    outcome: LoadResult


def bench_gateway(
    options: GatewayBenchOptions, peer: Peer | None, home: Path, report: Report
) -> dict[str, Any]:
    """Measure, and return the figures with the raw results."""
    _check(options)
    require_wrk()
    allow_files(options.idle)
    logs, cores = home / "logs", Cores.of_machine()
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder, ExitStack() as stack:
        scratch = Path(folder)
        contenders = [stack.enter_context(ours(cores, scratch, logs))]
        contenders.append(stack.enter_context(bare(BARE, cores.server, logs, scratch / ENGINE)))
        contenders.append(stack.enter_context(bare(CANNED, cores.server, logs)))
        if peer is not None:
            contenders.append(stack.enter_context(litellm(peer, cores, scratch, logs)))
        legs = _legs(options, contenders, WrkClient(cores.others, scratch), report)
        held = hold_idle(contenders[0], options.idle)
    report(Progress("idle", 1, 1, "laps"))
    return {"figures": figures(options, legs, held), "legs": [asdict(leg) for leg in legs]}


@dataclass(frozen=True)
class WrkClient:
    """The cores of wrk, and the directory of its script."""

    cores: Sequence[int]
    scratch: Path

    def ask(self, contender: GatewayContender, order: LoadRequest) -> LoadResult:
        body = order.body(MODEL, PROMPT)
        return press(
            order,
            contender.url,
            body,
            contender.key,
            server=contender.pid,
            cores=self.cores,
            scratch=self.scratch,
        )


def _legs(
    options: GatewayBenchOptions, contenders: Sequence[GatewayContender], client: WrkClient, report: Report
) -> list[Leg]:
    """Warm all contenders up, then measure them in turn."""
    for contender in contenders:
        ask_once(contender.url, options.small.body(MODEL, PROMPT), contender.key)
        client.ask(contender, LoadRequest(WARM_S, WARM_CONNECTIONS, tokens=16))
    turns = [
        (name, order, contender)
        for _ in range(options.rounds)
        for name, order in (("small", options.small), ("streamed", options.streamed))
        for contender in contenders
    ]
    turns += [
        (name, order, contender)
        for name, order in (("moderate", options.moderate), ("paced", options.paced))
        for contender in contenders[:2]
    ]
    legs = []
    for done, (name, order, contender) in enumerate(turns):
        report(Progress("legs", done, len(turns), "legs"))
        if contender.name == LITELLM and order.stream:
            order = replace(order, seconds=PATIENT * order.seconds)
        legs.append(Leg(contender.name, name, client.ask(contender, order)))
    report(Progress("legs", len(turns), len(turns), "legs"))
    return legs


def figures(options: GatewayBenchOptions, legs: Sequence[Leg], held: IdleResult) -> dict[str, float]:
    """Return rates, ratios, latencies, CPU times and idle memory."""
    small = {name: _rates(legs, name, "small") for name in ALL}
    streamed = {name: _rates(legs, name, "streamed") for name in ALL}
    tokens = options.streamed.tokens
    found: dict[str, float] = {}
    for name in ALL:
        if small[name]:
            found[f"{name}_requests_per_s"] = statistics.median(small[name])
            found[f"{name}_streamed_tokens_per_s"] = statistics.median(streamed[name]) * tokens
    found |= _ratios("vs", small) | _ratios("streamed_vs", streamed)
    moderate, of_bare = _one(legs, OURS, "moderate"), _one(legs, BARE, "moderate")
    return found | {
        "overhead_p50_ms": moderate.p50_s * 1000,
        "overhead_p99_ms": moderate.p99_s * 1000,
        "bare_p50_ms": of_bare.p50_s * 1000,
        "bare_p99_ms": of_bare.p99_s * 1000,
        "request_us": statistics.median(_cost_us(legs, "small", 1)),
        "streamed_token_us": statistics.median(_cost_us(legs, "paced", options.paced.tokens)),
        "failed": sum(leg.outcome.failed for leg in legs),
        "idle_connections": held.connections,
        "idle_memory_bytes": held.memory_bytes,
    }


def _ratios(prefix: str, rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {
        f"{prefix}_{name}": statistics.median(
            mine / theirs for mine, theirs in zip(rates[OURS], rates[name], strict=True)
        )
        for name in ALL[1:]
        if rates[name]
    }


def _rates(legs: Sequence[Leg], contender: str, order: str) -> list[float]:
    return [leg.outcome.requests_per_s for leg in legs if (leg.contender, leg.order) == (contender, order)]


def _one(legs: Sequence[Leg], contender: str, order: str) -> LoadResult:
    return next(leg.outcome for leg in legs if (leg.contender, leg.order) == (contender, order))


def _cost_us(legs: Sequence[Leg], order: str, tokens: int) -> list[float]:
    """Return the CPU time of our gateway per request or token, in all legs of a kind."""
    mine = [leg.outcome for leg in legs if (leg.contender, leg.order) == (OURS, order)]
    return [outcome.cpu_s / (outcome.requests * tokens) * 1e6 for outcome in mine]


def _check(options: GatewayBenchOptions) -> None:
    for option in ("rounds", "seconds", "connections", "streams"):
        if getattr(options, option) < 1:
            raise BadInput(f"--{option} {getattr(options, option)}: must be at least 1")
    if options.idle < 0:
        raise BadInput(f"--idle {options.idle}: must be 0 or more")
