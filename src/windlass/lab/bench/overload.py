"""`windlass bench overload`: the service under ten times the load that it can serve.

start it -> one request at a time: the unloaded TTFT -> start it again with a wait limit based on that -> as
many requests as it has slots: the peak -> ten times that rate, for minutes

The engine has one core; gateway and clients share the others. Requests arrive at random times (open loop),
and clients do not retry.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.lab.bench.bench_models import subject, write_subject
from windlass.lab.bench.engine_process import resident_bytes
from windlass.lab.bench.overload_client import ClientResult, OverloadClients
from windlass.serve.records.keys import ensure_first_key
from windlass.serve.records.state import open_state
from windlass.spec.errors import ProcessFailed
from windlass.spec.limits import ServeLimits
from windlass.spec.protocol.progress import Progress, Report
from windlass.spec.serve import Serve
from windlass.store.database import sqlite_url
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

MODEL = "small"
PROMPT, OUTPUT, SLOTS = 256, 32, 8
TIMES = 10.0
"""The load, as a multiple of the peak."""
WAIT = 0.6
"""The wait limit, as a multiple of the unloaded TTFT; the prefill of the request itself comes on top."""
UNLOADED = 40
WARM_S, PEAK_S = 5.0, 20.0
PROMPTS = 400
SEED = 7
REFUSED = 429


@dataclass(frozen=True)
class MemorySample:
    """Memory of gateway and engine together, at one time of the overload."""

    at: float
    size: int


def bench_overload(minutes: float, home: Path, report: Report) -> dict[str, Any]:
    """Run the benchmark; `figures` has the numbers."""
    model = write_subject(subject(MODEL), home / "bench" / MODEL)
    with _service(model, home, wait_s=None) as (service, key):
        unloaded = asyncio.run(_unloaded(service.url, key, report))
    first_s = statistics.median(seen.first_s for seen in unloaded)
    with _service(model, home, wait_s=WAIT * first_s) as (service, key):
        return asyncio.run(_overload(service, key, unloaded, minutes * 60, report))


async def _unloaded(url: str, key: str, report: Report) -> list[ClientResult]:
    """Send one request at a time; the first few are a warm-up."""
    crowd = OverloadClients(url, requests(key))
    await crowd.keep(1, WARM_S)
    seen: list[ClientResult] = []
    while len(seen) < UNLOADED:
        crowd.ask()
        await crowd.quiet()
        seen += crowd.take()
        report(Progress("unloaded", len(seen), UNLOADED, "requests"))
    crowd.close()
    return _answered(seen)


async def _overload(
    service: Supervisor, key: str, unloaded: Sequence[ClientResult], seconds: float, report: Report
) -> dict[str, Any]:
    crowd = OverloadClients(service.url, requests(key))
    await crowd.keep(SLOTS, WARM_S)
    report(Progress("peak", 0, PEAK_S, "s"))
    peak_per_s = len(_answered(await crowd.keep(SLOTS, PEAK_S))) / PEAK_S
    report(Progress("peak", PEAK_S, PEAK_S, "s", {"requests/s": f"{peak_per_s:.1f}"}))
    if not peak_per_s:
        raise ProcessFailed("the service answered nothing at all", hint=f"see {service.logs}")
    watch = asyncio.create_task(_watch(service, seconds, report))
    seen = await crowd.arrive(TIMES * peak_per_s, seconds, random.Random(SEED))
    samples = await watch
    crowd.close()
    found = figures(unloaded, peak_per_s, seen, samples, seconds)
    return {"figures": found | {"unsent": crowd.unsent}, "model": MODEL, "minutes": seconds / 60}


def figures(
    unloaded: Sequence[ClientResult],
    peak_per_s: float,
    seen: Sequence[ClientResult],
    samples: Sequence[MemorySample],
    seconds: float,
) -> dict[str, float]:
    """Compare the overload with the peak and with the unloaded service."""
    answered = _answered(seen)
    refused = [one for one in seen if one.status == REFUSED]
    first_s = [one.first_s for one in answered]
    alone_s = [one.first_s for one in unloaded]
    return {
        "goodput_vs_peak": len(answered) / seconds / peak_per_s,
        "ttft_p99_vs_unloaded": quantile(first_s, 0.99) / statistics.median(alone_s),
        "reject_p99_ms": 1000 * quantile([one.whole_s for one in refused], 0.99),
        "memory_growth": growth(samples),
        "ttft_unloaded_ms": 1000 * statistics.median(alone_s),
        "ttft_p50_ms": 1000 * quantile(first_s, 0.5),
        "ttft_p99_ms": 1000 * quantile(first_s, 0.99),
        "reject_p50_ms": 1000 * quantile([one.whole_s for one in refused], 0.5),
        "peak_tokens_per_s": peak_per_s * OUTPUT,
        "offered_per_s": len(seen) / seconds,
        "answered_per_s": len(answered) / seconds,
        "refused": len(refused),
        "failed": len(seen) - len(answered) - len(refused),
    }


def growth(samples: Sequence[MemorySample]) -> float:
    """Return the relative growth of memory from the first quarter of the overload to the last."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[:quarter], samples[-quarter:]
    return statistics.median(s.size for s in late) / statistics.median(s.size for s in early) - 1


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed; 0 if empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def requests(key: str) -> Iterator[bytes]:
    """Yield requests with new prompts, so that no cache helps."""
    rng = random.Random(SEED)
    bodies = []
    for number in range(PROMPTS):
        prompt = [number, *(rng.randrange(subject(MODEL).vocabulary) for _ in range(PROMPT - 1))]
        ask = {"model": MODEL, "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "stream": True}
        bodies.append(_request(json.dumps(ask).encode(), key))
    return itertools.cycle(bodies)


def _request(body: bytes, key: str) -> bytes:
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _answered(seen: Sequence[ClientResult]) -> list[ClientResult]:
    return [one for one in seen if one.status == 200]


async def _watch(service: Supervisor, seconds: float, report: Report) -> list[MemorySample]:
    """Sample the memory of all processes once per second."""
    samples: list[MemorySample] = []
    pids = [process.pid for process in (*service.gateways, *service.replicas.values())]
    while len(samples) < seconds - 1:
        await asyncio.sleep(1)
        samples.append(MemorySample(len(samples), sum(resident_bytes(pid, "VmRSS") for pid in pids)))
        report(Progress("overload", len(samples), seconds, "s"))
    return samples


@contextmanager
def _service(model: Path, home: Path, *, wait_s: float | None) -> Iterator[tuple[Supervisor, str]]:
    """Start the service with keys and limits, and run its supervisor in a thread."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-overload-"))
    state = sqlite_url(folder / "service.db")
    database = open_state(state)
    key = ensure_first_key(database) or ""
    database.close()
    limits = ServeLimits() if wait_s is None else ServeLimits(wait=wait_s)
    serve = Serve(
        port=0, slots=SLOTS, threads=1, state=state, limits=limits, prefix_cache="off", drafts=False
    )
    try:
        with Supervisor(ServiceSpec(MODEL, model, serve), home / "logs") as service, _kept_up(service):
            yield service, key
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _kept_up(service: Supervisor) -> Iterator[None]:
    ending = threading.Event()

    def step() -> None:
        while not ending.is_set():
            service.wait()
            service.step(time.monotonic())

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
