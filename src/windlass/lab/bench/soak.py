"""`windlass bench soak`: one engine under long mixed traffic, lap after lap.

    a lap: draw requests -> answer each alone with a fresh engine without cache and speculation
           -> mixed traffic of these requests at changing concurrency -> drain -> check blocks and memory

Every answer is compared with that of the fresh engine, token by token; for a cancelled one, the received
part. The KV cache is so small that the engine has to evict and preempt all the time.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from windlass.lab.bench.engine_process import BenchConnection, BenchEngine, resident_bytes
from windlass.lab.bench.traffic import draw_bad, draw_requests, write_soak_model
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.protocol.progress import Progress, Report
from windlass.spec.protocol.wire import Cancel, EngineLoad, Failed, Generate, Tokens

SLOTS = 32
KEYS_BYTES = 16 << 20
LAP_S = 30.0
REQUESTS = 48
MAX_IN_FLIGHT = 48
CHANGE_EVERY = 40
"""Requests after which the concurrency is drawn again."""
CANCELLED, BAD = 0.1, 0.03
WARM_SHARE = 0.2
"""Share of the time after which memory has reached its plateau."""
SEED = 6


@dataclass
class SoakCounts:
    """The outcomes of all requests."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    leaked_blocks: int = 0
    memory: list[tuple[float, int]] = field(default_factory=list)
    """Seconds of traffic, and resident bytes, after each lap."""


@dataclass
class Flight:
    """A request in flight: the expected answer, and the tokens received so far."""

    expected: list[int] | None
    """None if it must be rejected."""
    cancel_after: int | None
    came: list[int] = field(default_factory=list)


def soak(
    minutes: float, home: Path, report: Report, *, lap_s: float = LAP_S, requests: int = REQUESTS
) -> dict[str, Any]:
    """Run laps until there were `minutes` of traffic; return the figures."""
    if not minutes > 0:
        raise BadInput(f"--minutes {minutes:g}: must be more than 0")
    model, log = write_soak_model(home / "bench" / "soak"), home / "logs" / "bench-engine.log"
    tally, driven_s = SoakCounts(), 0.0
    options = ["--slots", str(SLOTS), "--keys-memory", str(KEYS_BYTES)]
    with BenchEngine(model, log, options) as engine:
        lap = 0
        while driven_s < 60 * minutes:
            report(_progress(tally, driven_s, minutes))
            drawn = draw_requests(SEED + lap, requests)
            expected = answers_alone(model, log, drawn)
            traffic = SoakLap(engine.client, tally, random.Random(SEED + lap), drawn, expected)
            driven_s += traffic.drive(min(lap_s, 60 * minutes - driven_s))
            tally.leaked_blocks = max(tally.leaked_blocks, traffic.settle().blocks)
            tally.memory.append((driven_s, resident_bytes(engine.pid, "VmRSS")))
            lap += 1
    report(_progress(tally, driven_s, minutes))
    return {"figures": soak_figures(tally, driven_s), "wrong": tally.wrong[:20], "memory": tally.memory}


def answers_alone(model: Path, log: Path, requests: Sequence[Generate]) -> dict[str, list[int]]:
    """Return the answer of a fresh engine to each request alone."""
    options = ["--slots", "1", "--prefix-cache", "off", "--no-drafts"]
    with BenchEngine(model, log, options) as engine:
        return {request.id: _alone(engine.client, request) for request in requests}


def _alone(client: BenchConnection, request: Generate) -> list[int]:
    client.send(request)
    came: list[int] = []
    while True:
        message, _ = client.receive()
        if isinstance(message, Failed):
            raise ProcessFailed(f"a valid request was rejected: {message.message}")
        if isinstance(message, Tokens):
            came += message.tokens
            if message.finish is not None:
                return came


class SoakLap:
    """The requests of one lap, many at a time, each several times."""

    def __init__(
        self,
        client: BenchConnection,
        tally: SoakCounts,
        rng: random.Random,
        requests: Sequence[Generate],
        expected: dict[str, list[int]],
    ) -> None:
        self._client, self._tally, self._rng = client, tally, rng
        self._requests, self._expected = requests, expected
        self._flights: dict[str, Flight] = {}
        self._sent = 0
        self._in_flight = 1

    def drive(self, seconds: float) -> float:
        """Keep requests in flight for `seconds`, then await the rest; return the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            while len(self._flights) < self._in_flight:
                self._send()
            self._receive()
        while self._flights:
            self._receive()
        return time.monotonic() - began

    def settle(self) -> EngineLoad:
        """Return the load that the engine reports once it is idle."""
        request = msgspec.structs.replace(self._requests[0], id=f"last.{self._sent}", max_tokens=1)
        self._client.send(request)
        done = False
        while True:
            message, _ = self._client.receive()
            done = done or (isinstance(message, Tokens) and message.id == request.id)
            if done and isinstance(message, EngineLoad) and not message.running and not message.waiting:
                return message

    def _send(self) -> None:
        self._sent += 1
        if self._sent % CHANGE_EVERY == 0:
            self._in_flight = self._rng.randint(1, MAX_IN_FLIGHT)
        request, flight = self._draw()
        self._flights[request.id] = flight
        self._client.send(request)
        self._tally.counts["requests"] += 1
        if flight.cancel_after == 0:
            self._cancel(request.id)

    def _draw(self) -> tuple[Generate, Flight]:
        if self._rng.random() < BAD:
            return draw_bad(self._rng, self._sent), Flight(None, None)
        chosen = self._rng.choice(self._requests)
        cancel_after = self._rng.randint(0, chosen.max_tokens) if self._rng.random() < CANCELLED else None
        request = msgspec.structs.replace(chosen, id=f"{chosen.id}.{self._sent}")
        return request, Flight(self._expected[chosen.id], cancel_after)

    def _cancel(self, id_: str) -> None:
        """Cancel a request; later messages about it are ignored."""
        flight = self._flights.pop(id_)
        self._client.send(Cancel(id_))
        self._tally.counts["cancelled"] += 1
        self._judge(id_, flight.expected is not None and flight.came == flight.expected[: len(flight.came)])

    def _receive(self) -> None:
        message, _ = self._client.receive()
        flight = self._flights.get(getattr(message, "id", ""))
        if flight is None:
            return
        if isinstance(message, Failed):
            del self._flights[message.id]
            self._tally.counts["refused"] += 1
            self._judge(message.id, flight.expected is None)
        elif isinstance(message, Tokens):
            flight.came += message.tokens
            if message.finish is not None:
                del self._flights[message.id]
                self._tally.counts["finished"] += 1
                self._judge(message.id, flight.came == flight.expected)
            elif flight.cancel_after is not None and len(flight.came) >= flight.cancel_after:
                self._cancel(message.id)

    def _judge(self, id_: str, right: bool) -> None:
        if not right:
            self._tally.wrong.append(id_)


def soak_figures(tally: SoakCounts, driven_s: float) -> dict[str, float]:
    """Compare memory at the end with that after the warm-up, in which it still grows."""
    warm = next(size for at_s, size in tally.memory if at_s >= WARM_SHARE * driven_s)
    return {
        "memory_growth": tally.memory[-1][1] / warm - 1,
        "leaked_blocks": tally.leaked_blocks,
        "wrong_answers": len(tally.wrong),
        **{name: tally.counts[name] for name in ("requests", "finished", "cancelled", "refused")},
        "minutes": driven_s / 60,
    }


def _progress(tally: SoakCounts, driven_s: float, minutes: float) -> Progress:
    note = {"requests": tally.counts["requests"], "wrong": len(tally.wrong)}
    return Progress("soak", min(driven_s, 60 * minutes), 60 * minutes, "s", note)
