"""Proves that no limit is exceeded, however many gateways share it, and that none is left unused.

start processes on one database -> freeze one for longer than its leases, kill another -> collect what all
took, and when -> compare with a single bucket

The allowed amounts are known exactly: a rate of requests over any window, daily tokens, and permits at any
time. The permits of a frozen gateway are leased to others when its leases expire while its clients still
wait, so permits may be exceeded by those it had in use. `starved` is the share of the allowance that no
process got, although all of them wanted it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.lab.proofs.quota.load_worker import READY
from windlass.serve.gateway.limits.quota_lease import TERM_S
from windlass.spec.errors import ProcessFailed
from windlass.spec.limits import Limits
from windlass.spec.processes import QUOTA_LOAD
from windlass.store.database import sqlite_url

RATE = 300.0
"""Requests of each kind per second, from all processes: several times the limit."""
START_S = 120.0
"""Seconds for all processes to start, on a busy machine; then they begin together."""
SOON_S = 0.2


@dataclass(frozen=True)
class QuotaTake:
    """Quota that a process took, or permits that it returned."""

    at: float
    what: str
    amount: int


def prove_limits(
    processes: int, seconds: float, say: Callable[[str], None], *, state: str | None = None
) -> dict[str, Any]:
    """Run the proof; `figures` has the numbers."""
    limits = Limits(
        requests_per_second=100, burst=20, tokens_per_day=round(400 * seconds), concurrent=max(4, processes)
    )
    with tempfile.TemporaryDirectory(prefix="windlass-limits-") as folder:
        url = state or sqlite_url(Path(folder) / "service.db")
        say(f"{processes} gateways take quota for {seconds:.0f} s; one is frozen, another is killed")
        takes_by_process, frozen = _run_load(processes, seconds, limits, url)
    takes = sorted((take for process in takes_by_process for take in process), key=lambda take: take.at)
    found = figures(takes, limits, seconds, frozen=frozen)
    return {"figures": found, "processes": processes, "seconds": seconds}


def figures(
    takes: Sequence[QuotaTake], limits: Limits, seconds: float, *, frozen: int = 0
) -> dict[str, float]:
    """Compare the takes, in order of time, with the limits; permits may be exceeded by `frozen`."""
    assert limits.requests_per_second is not None
    assert limits.tokens_per_day is not None
    assert limits.concurrent is not None
    requests = [take for take in takes if take.what == "requests"]
    tokens = sum(take.amount for take in takes if take.what == "tokens")
    permits = [take for take in takes if take.what == "permits"]
    bound = limits.burst_requests + limits.requests_per_second * seconds
    overshoot = worst_window(requests, limits.requests_per_second) - limits.burst_requests
    return {
        "limit": limits.requests_per_second,
        "granted": len(requests),
        "bound": bound,
        "overshoot": max(0.0, overshoot),
        "starved": max(0.0, 1 - len(requests) / bound),
        "day_limit": limits.tokens_per_day,
        "day_granted": tokens,
        "day_overshoot": max(0, tokens - limits.tokens_per_day),
        "day_starved": max(0.0, 1 - tokens / limits.tokens_per_day),
        "permits_limit": limits.concurrent,
        "permits_most": max_at_once(permits),
        "permits_bound": limits.concurrent + frozen,
        "permits_overshoot": max(0, max_at_once(permits) - limits.concurrent - frozen),
    }


def worst_window(takes: Sequence[QuotaTake], per_s: float) -> float:
    """Return the largest excess over the rate in any time window: the burst that a bucket must have held."""
    level = worst = 0.0
    before = takes[0].at if takes else 0.0
    for take in takes:
        level = max(0.0, level - per_s * (take.at - before)) + take.amount
        worst, before = max(worst, level), take.at
    return worst


def max_at_once(takes: Sequence[QuotaTake]) -> int:
    now = maximum = 0
    for take in sorted(takes, key=lambda take: (take.at, take.amount)):
        now += take.amount
        maximum = max(maximum, now)
    return maximum


def _run_load(processes: int, seconds: float, limits: Limits, url: str) -> tuple[list[list[QuotaTake]], int]:
    """Run all processes; return the takes of each, and how many permits the frozen one had in use."""
    command = [sys.executable, "-m", QUOTA_LOAD, "--state", url]
    command += ["--limits", limits.model_dump_json(exclude_none=True)]
    command += ["--seconds", str(seconds), "--rate", str(RATE / processes)]
    with tempfile.TemporaryDirectory(prefix="windlass-limits-") as folder:
        files = [Path(folder) / str(number) for number in range(processes)]
        popens = []
        for number, file in enumerate(files):
            with file.open("wb") as out:
                args = [*command, "--number", str(number)]
                popens.append(subprocess.Popen(args, stdin=subprocess.PIPE, stdout=out))
        try:
            _begin(popens, files)
            disturbed = _disturb(popens, seconds)
            for popen in popens:
                popen.wait(seconds + 60)
        finally:
            for popen in popens:
                popen.kill()
                popen.communicate()
        takes_by_process = [read_takes(file.read_text()) for file in files]
    if disturbed is None:
        return takes_by_process, 0
    frozen_at, killed_at = disturbed
    takes_by_process[-1] = ended(takes_by_process[-1], killed_at)
    return takes_by_process, in_use([take for take in takes_by_process[0] if take.at <= frozen_at])


def _begin(popens: Sequence[subprocess.Popen[bytes]], files: Sequence[Path]) -> None:
    """Wait until all processes are ready, and start them together."""
    until = time.monotonic() + START_S
    while not all(file.read_bytes().startswith(READY) for file in files):
        if time.monotonic() > until or any(popen.poll() is not None for popen in popens):
            raise ProcessFailed("a process of the proof did not start; its error is above")
        time.sleep(SOON_S)
    begin = time.time() + SOON_S
    for popen in popens:
        assert popen.stdin is not None
        popen.stdin.write(f"{begin}\n".encode())
        popen.stdin.flush()
    time.sleep(SOON_S)


def _disturb(popens: Sequence[subprocess.Popen[bytes]], seconds: float) -> tuple[float, float] | None:
    """Freeze the first process until its leases have expired, and kill the last; return when."""
    if len(popens) < 3 or seconds < TERM_S + 4:
        return None
    time.sleep(1.0)
    os.kill(popens[0].pid, signal.SIGSTOP)
    frozen_at = time.time()
    time.sleep(1.0)
    popens[-1].kill()
    killed_at = time.time()
    time.sleep(TERM_S)
    os.kill(popens[0].pid, signal.SIGCONT)
    return frozen_at, killed_at


def in_use(takes: Sequence[QuotaTake]) -> int:
    return sum(take.amount for take in takes if take.what == "permits")


def read_takes(text: str) -> list[QuotaTake]:
    """Parse the output of a process; the last line of a killed one may be incomplete."""
    lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()[1:]]
    return [QuotaTake(float(at), what, int(amount)) for at, what, amount in lines]


def ended(takes: list[QuotaTake], at: float) -> list[QuotaTake]:
    """Return the permits of a killed process: its clients' connections died with it."""
    return [*takes, QuotaTake(max([at, *(take.at for take in takes)]), "permits", -in_use(takes))]
