"""Proves that no limit is exceeded however many gateways share it, and that none is left unused.

start processes on one database -> freeze one for longer than its loans last, kill another -> gather what all
took, and when -> hold it against a single bucket

What the processes may take is known exactly: a flow of requests, over any window; a day's tokens; permits, at
any moment. A frozen gateway's permits are lent to others when its loans end, and its clients still wait, so
those that it had in use may be exceeded. `starved` is the share of what was allowed that nobody got although
everybody asked.
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
"""Requests of each kind a second, from all processes: several times what is allowed."""
START_S = 120.0
"""For all processes to be there, on a busy machine; then they begin together."""
SOON_S = 0.2


@dataclass(frozen=True)
class QuotaTake:
    """Something that a process took, or permits that it gave back."""

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
        say(f"{processes} gateways ask for {seconds:.0f} s; one is frozen for a while, another is killed")
        told, frozen = _hammer(processes, seconds, limits, url)
    deeds = sorted((deed for process in told for deed in process), key=lambda deed: deed.at)
    found = figures(deeds, limits, seconds, frozen=frozen)
    return {"figures": found, "processes": processes, "seconds": seconds}


def figures(
    deeds: Sequence[QuotaTake], limits: Limits, seconds: float, *, frozen: int = 0
) -> dict[str, float]:
    """Hold what was taken, in order of time, against the limits; `frozen` permits may be exceeded by."""
    assert limits.requests_per_second is not None
    assert limits.tokens_per_day is not None
    assert limits.concurrent is not None
    requests = [deed for deed in deeds if deed.what == "requests"]
    tokens = sum(deed.amount for deed in deeds if deed.what == "tokens")
    permits = [deed for deed in deeds if deed.what == "permits"]
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


def worst_window(deeds: Sequence[QuotaTake], per_s: float) -> float:
    """Return the most that any window of time has beyond its rate: what a bucket must have held."""
    level = worst = 0.0
    before = deeds[0].at if deeds else 0.0
    for deed in deeds:
        level = max(0.0, level - per_s * (deed.at - before)) + deed.amount
        worst, before = max(worst, level), deed.at
    return worst


def max_at_once(deeds: Sequence[QuotaTake]) -> int:
    now = most = 0
    for deed in sorted(deeds, key=lambda deed: (deed.at, deed.amount)):
        now += deed.amount
        most = max(most, now)
    return most


def _hammer(processes: int, seconds: float, limits: Limits, url: str) -> tuple[list[list[QuotaTake]], int]:
    """Run all processes; return what each did, and how many permits the frozen one had in use."""
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
        told = [read_deeds(file.read_text()) for file in files]
    if disturbed is None:
        return told, 0
    frozen_at, killed_at = disturbed
    told[-1] = ended(told[-1], killed_at)
    return told, in_use([deed for deed in told[0] if deed.at <= frozen_at])


def _begin(popens: Sequence[subprocess.Popen[bytes]], files: Sequence[Path]) -> None:
    """Wait until all processes are there, and let them begin together."""
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
    """Freeze the first process until its loans have ended, and kill the last; say when."""
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


def in_use(deeds: Sequence[QuotaTake]) -> int:
    return sum(deed.amount for deed in deeds if deed.what == "permits")


def read_deeds(text: str) -> list[QuotaTake]:
    """Read what a process told; the last line of a killed one may be torn."""
    lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()[1:]]
    return [QuotaTake(float(at), what, int(amount)) for at, what, amount in lines]


def ended(deeds: list[QuotaTake], at: float) -> list[QuotaTake]:
    """Give back what a killed process had in use: its clients' connections died with it."""
    return [*deeds, QuotaTake(max([at, *(deed.at for deed in deeds)]), "permits", -in_use(deeds))]
