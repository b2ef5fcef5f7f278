"""Proves that an engine may die, freeze or lose its connection in mid-stream; clients notice only a pause.

reference answers, one by one -> all clients at once, without faults (the usual pauses) -> faults at random
times under the same load -> broken or different answers, and pauses beyond the usual
"""

from __future__ import annotations

import itertools
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.lab.proofs.failover.engine_faults import KINDS, FaultCatalog, Kind
from windlass.lab.proofs.failover.requests import MODEL, WHOLE, StreamRequest, asks, write_model
from windlass.lab.proofs.failover.stream_reader import StreamContent, listen
from windlass.spec.errors import ProcessFailed
from windlass.spec.serve import Serve
from windlass.supervisor.background_service import watched
from windlass.supervisor.processes import EngineReplica
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

CLIENTS = 6
STOP_AT = 0.6
"""Position in the reference answer from which the stop string of a request is taken."""
STOP_CHARS = 12
SETTLE_S = 90.0
LOOK_S = 0.02
MAX_PAUSE_S = 0.6
"""A fault comes at a random time within this many seconds after the recovery from the last one."""
CALM_ROUNDS = 2
MAX_SHOWN = 20


@dataclass
class FailoverCounts:
    """The answers that the clients received so far; several threads add to it."""

    wanted: dict[str, StreamContent]
    answers: list[tuple[StreamRequest, StreamContent]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    broken: int = 0
    different: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def words(self, faults: int) -> str:
        said = f"{faults} faults, {len(self.answers)} answers"
        return f"{said}: {self.broken} broken, {self.different} different"

    def add(self, ask: StreamRequest, answer: StreamContent) -> None:
        with self.lock:
            self.answers.append((ask, answer))
            if answer.trouble:
                self.broken += 1
                self.wrong.append(f"{ask.name}: {answer.trouble}")
            elif not answer.says_the_same(self.wanted[ask.name]):
                self.different += 1
                self.wrong.append(f"{ask.name}: {_apart(answer, self.wanted[ask.name])}")


@dataclass(frozen=True)
class Fault:
    """An injected fault: its kind, the replica and the time."""

    kind: Kind
    replica: str
    at: float


def prove_failover(
    times: int,
    say: Callable[[str], None],
    *,
    replicas: int = 3,
    kinds: Sequence[Kind] = KINDS,
    seed: int = 1,
    logs: Path | None = None,
    family: str = "llama",
) -> dict[str, Any]:
    """Inject `times` faults; `figures` has the numbers, `wrong` describes each bad answer."""
    with tempfile.TemporaryDirectory(prefix="windlass-failover-") as made:
        folder = Path(made)
        serve = Serve(port=0, open=True, replicas=replicas, threads=1, slots=CLIENTS * 2)
        offer = ServiceSpec(MODEL, write_model(folder, family), serve)
        catalog = FaultCatalog()
        try:
            with watched(
                Supervisor(offer, logs or folder / "logs", gateway_socket=catalog.proxy_socket)
            ) as service:
                say(f"{replicas} replicas answer at {service.url}")
                return _prove(service, catalog, times, kinds, random.Random(seed), say)
        finally:
            catalog.close()


def _prove(
    service: Supervisor,
    catalog: FaultCatalog,
    times: int,
    kinds: Sequence[Kind],
    draw: random.Random,
    say: Callable[[str], None],
) -> dict[str, Any]:
    wanted, requests = _reference(service.url)
    calm = _calm(service.url, requests, FailoverCounts(wanted))
    tally, stop = FailoverCounts(wanted), threading.Event()
    clients = [
        threading.Thread(target=_client, args=(service.url, requests, place, tally, stop))
        for place in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    faults: list[Fault] = []
    shown = 0
    try:
        for number in range(times):
            faults.append(_inject(service, catalog, kinds[number % len(kinds)], draw))
            if (number + 1) % 10 == 0:
                say("; ".join([tally.words(number + 1), *tally.wrong[shown:]]))
                shown = len(tally.wrong)
        _settle(service)
    finally:
        stop.set()
        for client in clients:
            client.join()
    worst = longest(tally, calm, faults)[:MAX_SHOWN]
    return {"figures": figures(tally, calm, faults), "longest": worst, "wrong": tally.wrong[:MAX_SHOWN]}


def figures(
    tally: FailoverCounts, calm: Sequence[tuple[StreamRequest, StreamContent]], faults: Sequence[Fault]
) -> dict[str, float]:
    """Summarise; pauses count for answers in progress at a fault, beyond the longest pause without faults."""
    usual_s = {name: max(answer.pause_s for ask, answer in calm if ask.name == name) for name in tally.wanted}
    struck = [
        (ask, answer)
        for ask, answer in tally.answers
        if any(answer.began <= fault.at <= answer.ended for fault in faults)
    ]
    gaps = [gap_s for gap_s, _, _ in longest(tally, calm, faults)][::-1]
    kinds = Counter(fault.kind for fault in faults)
    return {
        "faults": len(faults),
        **{f"faults_{kind}": kinds[kind] for kind in KINDS},
        "streams": len(tally.answers),
        "streams_struck": len(struck),
        "broken": tally.broken,
        "different": tally.different,
        "gap_p50_s": quantile(gaps, 0.5),
        "gap_p99_s": quantile(gaps, 0.99),
        "max_gap_s": gaps[-1] if gaps else 0.0,
        "usual_pause_s": max(pause for name, pause in usual_s.items() if name != WHOLE),
    }


def longest(
    tally: FailoverCounts, calm: Sequence[tuple[StreamRequest, StreamContent]], faults: Sequence[Fault]
) -> list[tuple[float, str, list[Kind]]]:
    """Return the pauses of affected streams, the longest first, with the request and the fault."""
    usual_s = {name: max(answer.pause_s for ask, answer in calm if ask.name == name) for name in tally.wanted}
    found = []
    for ask, answer in tally.answers:
        met = [fault.kind for fault in faults if answer.began <= fault.at <= answer.ended]
        if met and ask.streams:
            found.append((max(0.0, answer.pause_s - usual_s[ask.name]), ask.name, [*met]))
    return sorted(found, reverse=True)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed; 0 if empty."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _reference(url: str) -> tuple[dict[str, StreamContent], list[StreamRequest]]:
    """Send every request once, alone; add requests that stop at a text of their answer."""
    requests = asks()
    wanted = {ask.name: _whole(url, ask) for ask in requests}
    for ask in [each for each in requests if each.name.startswith(("greedy", "sampled text"))]:
        text = wanted[ask.name].texts[0]
        at = int(len(text) * STOP_AT)
        stopping = ask.stopping_at(text[at : at + STOP_CHARS])
        wanted[stopping.name] = _whole(url, stopping)
        requests.append(stopping)
    return wanted, requests


def _whole(url: str, ask: StreamRequest) -> StreamContent:
    answer = listen(url, ask)
    if answer.trouble:
        raise ProcessFailed(f"{ask.name}: no answer even without a fault: {answer.trouble}")
    return answer


def _calm(
    url: str, requests: Sequence[StreamRequest], tally: FailoverCounts
) -> list[tuple[StreamRequest, StreamContent]]:
    """Send all requests from all clients without faults; return the answers."""
    stop = threading.Event()
    rounds = CALM_ROUNDS * len(requests)
    clients = [
        threading.Thread(target=_client, args=(url, requests, place, tally, stop, rounds // CLIENTS + 1))
        for place in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if tally.wrong:
        raise ProcessFailed(f"answers differ even without a fault: {tally.wrong[0]}")
    missing = [ask for ask in requests if ask.name not in {each.name for each, _ in tally.answers}]
    return tally.answers + [(ask, tally.wanted[ask.name]) for ask in missing]


def _client(
    url: str,
    requests: Sequence[StreamRequest],
    first: int,
    tally: FailoverCounts,
    stop: threading.Event,
    limit: int | None = None,
) -> None:
    """One client: send one request after the other."""
    for number in itertools.count():
        if stop.is_set() or number == limit:
            return
        ask = (
            requests[(first + number * CLIENTS) % len(requests)]
            if limit
            else requests[(first + number) % len(requests)]
        )
        tally.add(ask, listen(url, ask))


def _inject(service: Supervisor, catalog: FaultCatalog, kind: Kind, draw: random.Random) -> Fault:
    """Wait for the recovery from the last fault and a random time more; then hit an engine that generates."""
    _settle(service)
    time.sleep(draw.random() * MAX_PAUSE_S)
    busy: list[EngineReplica] = []
    while not busy:
        time.sleep(LOOK_S)
        busy = [each for each in list(service.replicas.values()) if _is_up(each) and each.liveness.in_flight]
    victim = draw.choice(busy)
    at = time.monotonic()
    catalog.strike(victim, kind)
    time.sleep(LOOK_S)
    return Fault(kind, victim.name, at)


def _settle(service: Supervisor) -> None:
    """Wait until all wanted engines answer."""
    wanted = sum(group.replicas for group in service.wanted.groups)
    until = time.monotonic() + SETTLE_S
    while sum(_is_up(each) for each in list(service.replicas.values())) < wanted:
        if time.monotonic() > until:
            raise ProcessFailed(f"the engines did not recover within {SETTLE_S:.0f} s")
        time.sleep(LOOK_S)


def _is_up(replica: EngineReplica) -> bool:
    return replica.phase == "ready" and replica.liveness.silent_s < 1.0


def _apart(answer: StreamContent, wanted: StreamContent) -> str:
    """Describe where an answer differs from the reference."""
    for place, text in wanted.texts.items():
        other = answer.texts.get(place, "")
        if other != text:
            at = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), len(other))
            return (
                f"answer {place} differs from the reference at character {at} of {len(text)} ({len(other)})"
            )
    return f"the text is the same, but not its scores, ends or counts: {answer.finishes}, {answer.usage}"
