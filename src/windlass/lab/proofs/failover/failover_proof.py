"""Proves that an engine may end, freeze or be cut off in mid-stream, and no client notices more than a pause.

undisturbed answers, alone -> all clients at once, undisturbed (what pauses are usual) -> faults at random
moments, while clients go on -> answers that broke off or differ, and the pauses beyond the usual
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
"""Where, in its undisturbed answer, the stop string of a request is taken from."""
STOP_CHARS = 12
SETTLE_S = 90.0
LOOK_S = 0.02
MAX_PAUSE_S = 0.6
"""Faults come at random moments within so long after the last one has been got over."""
CALM_ROUNDS = 2
MAX_TOLD = 20


@dataclass
class FailoverCounts:
    """What the clients have heard so far; several threads add to it."""

    wanted: dict[str, StreamContent]
    answers: list[tuple[StreamRequest, StreamContent]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    broken: int = 0
    different: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def words(self, faults: int) -> str:
        said = f"{faults} faults, {len(self.answers)} answers"
        return f"{said}: {self.broken} broken, {self.different} different"

    def add(self, ask: StreamRequest, heard: StreamContent) -> None:
        with self.lock:
            self.answers.append((ask, heard))
            if heard.trouble:
                self.broken += 1
                self.wrong.append(f"{ask.name}: {heard.trouble}")
            elif not heard.says_the_same(self.wanted[ask.name]):
                self.different += 1
                self.wrong.append(f"{ask.name}: {_apart(heard, self.wanted[ask.name])}")


@dataclass(frozen=True)
class Fault:
    """What was done to which engine, and when."""

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
    """Strike `times` times; `figures` has the numbers, `wrong` what each bad answer said."""
    with tempfile.TemporaryDirectory(prefix="windlass-failover-") as made:
        folder = Path(made)
        serve = Serve(port=0, open=True, replicas=replicas, threads=1, slots=CLIENTS * 2)
        offer = ServiceSpec(MODEL, write_model(folder, family), serve)
        arsenal = FaultCatalog()
        try:
            with watched(Supervisor(offer, logs or folder / "logs", door=arsenal.door)) as service:
                say(f"{replicas} replicas answer at {service.url}")
                return _prove(service, arsenal, times, kinds, random.Random(seed), say)
        finally:
            arsenal.close()


def _prove(
    service: Supervisor,
    arsenal: FaultCatalog,
    times: int,
    kinds: Sequence[Kind],
    draw: random.Random,
    say: Callable[[str], None],
) -> dict[str, Any]:
    wanted, asked = _undisturbed(service.url)
    calm = _calm(service.url, asked, FailoverCounts(wanted))
    tally, stop = FailoverCounts(wanted), threading.Event()
    clients = [
        threading.Thread(target=_ask_on, args=(service.url, asked, place, tally, stop))
        for place in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    faults: list[Fault] = []
    told = 0
    try:
        for number in range(times):
            faults.append(_strike(service, arsenal, kinds[number % len(kinds)], draw))
            if (number + 1) % 10 == 0:
                say("; ".join([tally.words(number + 1), *tally.wrong[told:]]))
                told = len(tally.wrong)
        _settle(service)
    finally:
        stop.set()
        for client in clients:
            client.join()
    worst = longest(tally, calm, faults)[:MAX_TOLD]
    return {"figures": figures(tally, calm, faults), "longest": worst, "wrong": tally.wrong[:MAX_TOLD]}


def figures(
    tally: FailoverCounts, calm: Sequence[tuple[StreamRequest, StreamContent]], faults: Sequence[Fault]
) -> dict[str, float]:
    """Sum up; a pause counts for answers that were under way at a fault, beyond the longest of calm times."""
    usual_s = {name: max(heard.pause_s for ask, heard in calm if ask.name == name) for name in tally.wanted}
    struck = [
        (ask, heard)
        for ask, heard in tally.answers
        if any(heard.began <= fault.at <= heard.ended for fault in faults)
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
    """Return the pauses of struck streams, the longest first, with what was asked and what befell it."""
    usual_s = {name: max(heard.pause_s for ask, heard in calm if ask.name == name) for name in tally.wanted}
    found = []
    for ask, heard in tally.answers:
        met = [fault.kind for fault in faults if heard.began <= fault.at <= heard.ended]
        if met and ask.streams:
            found.append((max(0.0, heard.pause_s - usual_s[ask.name]), ask.name, [*met]))
    return sorted(found, reverse=True)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value that so great a share of them does not exceed; 0 of nothing."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _undisturbed(url: str) -> tuple[dict[str, StreamContent], list[StreamRequest]]:
    """Ask everything once, alone; add requests that stop at a text of their answer."""
    asked = asks()
    wanted = {ask.name: _whole(url, ask) for ask in asked}
    for ask in [each for each in asked if each.name.startswith(("greedy", "sampled text"))]:
        text = wanted[ask.name].texts[0]
        at = int(len(text) * STOP_AT)
        stopping = ask.stopping_at(text[at : at + STOP_CHARS])
        wanted[stopping.name] = _whole(url, stopping)
        asked.append(stopping)
    return wanted, asked


def _whole(url: str, ask: StreamRequest) -> StreamContent:
    heard = listen(url, ask)
    if heard.trouble:
        raise ProcessFailed(f"{ask.name}: no answer even without a fault: {heard.trouble}")
    return heard


def _calm(
    url: str, asked: Sequence[StreamRequest], tally: FailoverCounts
) -> list[tuple[StreamRequest, StreamContent]]:
    """Have all clients ask everything with nothing to disturb them; return what they heard."""
    stop = threading.Event()
    rounds = CALM_ROUNDS * len(asked)
    clients = [
        threading.Thread(target=_ask_on, args=(url, asked, place, tally, stop, rounds // CLIENTS + 1))
        for place in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if tally.wrong:
        raise ProcessFailed(f"answers differ even without a fault: {tally.wrong[0]}")
    missing = [ask for ask in asked if ask.name not in {each.name for each, _ in tally.answers}]
    return tally.answers + [(ask, tally.wanted[ask.name]) for ask in missing]


def _ask_on(
    url: str,
    asked: Sequence[StreamRequest],
    first: int,
    tally: FailoverCounts,
    stop: threading.Event,
    most: int | None = None,
) -> None:
    """Be one client: ask one thing after the other."""
    for number in itertools.count():
        if stop.is_set() or number == most:
            return
        ask = asked[(first + number * CLIENTS) % len(asked)] if most else asked[(first + number) % len(asked)]
        tally.add(ask, listen(url, ask))


def _strike(service: Supervisor, arsenal: FaultCatalog, kind: Kind, draw: random.Random) -> Fault:
    """Wait until the last fault is got over, and a random moment more; then strike an engine that writes."""
    _settle(service)
    time.sleep(draw.random() * MAX_PAUSE_S)
    busy: list[EngineReplica] = []
    while not busy:
        time.sleep(LOOK_S)
        busy = [each for each in list(service.replicas.values()) if _is_up(each) and each.pulse.in_flight]
    victim = draw.choice(busy)
    at = time.monotonic()
    arsenal.strike(victim, kind)
    time.sleep(LOOK_S)
    return Fault(kind, victim.name, at)


def _settle(service: Supervisor) -> None:
    """Wait until as many engines answer as are wanted."""
    wanted = sum(group.replicas for group in service.wanted.groups)
    until = time.monotonic() + SETTLE_S
    while sum(_is_up(each) for each in list(service.replicas.values())) < wanted:
        if time.monotonic() > until:
            raise ProcessFailed(f"the engines were not back within {SETTLE_S:.0f} s")
        time.sleep(LOOK_S)


def _is_up(replica: EngineReplica) -> bool:
    return replica.phase == "ready" and replica.pulse.silent_s < 1.0


def _apart(heard: StreamContent, wanted: StreamContent) -> str:
    """Say where an answer leaves the undisturbed one."""
    for place, text in wanted.texts.items():
        other = heard.texts.get(place, "")
        if other != text:
            at = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), len(other))
            return f"answer {place} leaves the reference at character {at} of {len(text)}, with {len(other)}"
    return f"the text is the same, but not its scores, ends or counts: {heard.finishes}, {heard.usage}"
