"""The client of `windlass bench gateway`: wrk, the same for every contender, on its own core.

wrk keeps `connections` open and sends the next request as soon as an answer is complete, or after a pause. It
is a C program, so that on two cores the server is the bottleneck.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.spec.errors import NotFound, ProcessFailed

WRK = "wrk"
PATH = "/v1/chat/completions"
FIRST_S = 60.0
LOGS = "see bench-gateway-*.log in the home's logs"
MAX_FAILED = 0.05
"""A run with a larger share of failures is not a valid measurement."""
SCRIPT = """\
wrk.method = "POST"
wrk.body = %(body)s
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer %(key)s"
%(pause)s
function done(summary, latency, requests)
  local e = summary.errors
  local said = '\\n{"requests": %%d, "duration_us": %%d, "p50_us": %%f, "p99_us": %%f, "failed": %%d}\\n'
  local failed = e.status + e.connect + e.read + e.write + e.timeout
  local p50, p99 = latency:percentile(50), latency:percentile(99)
  io.write(said:format(summary.requests, summary.duration, p50, p99, failed))
end
"""
PAUSE = "function delay() return math.random(%d, %d) end"
"""Random, because connections with equal pauses would stay in step and wait for each other."""
STREAMS_END_S = 3
"""Extra seconds for the start and the end of wrk, which aborts running requests at its end."""


@dataclass(frozen=True)
class LoadRequest:
    """The requests of a client, and its load."""

    seconds: int
    connections: int
    tokens: int
    stream: bool = False
    pace: int = 0
    """Tokens per second of each answer (gateway_mock.py); 0: at once."""
    pause_ms: int = 0
    """Mean time between an answer and the next request."""

    def body(self, model: str, prompt: str) -> str:
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.tokens,
            "temperature": 0.7,
            "seed": self.pace,
        }
        return json.dumps(body | ({"stream": True} if self.stream else {}))


@dataclass(frozen=True)
class LoadResult:
    """The client's counts, and the server's CPU time."""

    requests: int
    """Successful requests."""
    failed: int
    seconds: float
    p50_s: float
    p99_s: float
    cpu_s: float

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds


def require_wrk() -> str:
    """Return the path of wrk."""
    found = shutil.which(WRK)
    if found is None:
        raise NotFound("wrk, the client of this benchmark, is not installed", hint="apt-get install wrk")
    return found


def ask_once(url: str, body: str, key: str) -> None:
    """Send one request: some servers load parts of themselves only then."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}{PATH}", body.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=FIRST_S) as answer:
            answer.read()
    except OSError as error:
        raise ProcessFailed(f"{url} did not answer the first request: {error}", hint=LOGS) from None


def press(
    order: LoadRequest, url: str, body: str, key: str, *, server: int, cores: Sequence[int], scratch: Path
) -> LoadResult:
    """Run wrk against one server."""
    script = scratch / "order.lua"
    pause = PAUSE % (order.pause_ms // 2, order.pause_ms * 3 // 2) if order.pause_ms else ""
    script.write_text(SCRIPT % {"body": json.dumps(body), "key": key, "pause": pause})
    load = ["-t1", f"-c{order.connections}", f"-d{order.seconds}s", "--timeout", "30s"]
    command = [require_wrk(), *load, "-s", str(script), f"{url}{PATH}"]
    before = cpu_seconds(server)
    said = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=order.seconds + 60 + STREAMS_END_S,
        check=False,
        preexec_fn=lambda: pin(0, cores),
    )
    used = cpu_seconds(server) - before
    return read_outcome(said.stdout, used, url, said.stderr)


def read_outcome(said: str, cpu_s: float, url: str, errors: str = "") -> LoadResult:
    """Parse the last line that the script wrote."""
    last = said.strip().rpartition("\n")[2]
    if not last.startswith("{"):
        raise ProcessFailed(f"wrk counted nothing at {url}", hint=(errors or said).strip()[:500])
    found = json.loads(last)
    good = found["requests"] - found["failed"]
    if found["failed"] > MAX_FAILED * found["requests"] or not good:
        raise ProcessFailed(
            f"{found['failed']} of {found['requests']} requests to {url} failed",
            hint=LOGS,
        )
    return LoadResult(
        requests=good,
        failed=found["failed"],
        seconds=found["duration_us"] / 1e6,
        p50_s=found["p50_us"] / 1e6,
        p99_s=found["p99_us"] / 1e6,
        cpu_s=cpu_s,
    )


def pin(process: int, cores: Sequence[int]) -> None:
    """Pin a process (0: this one) to some cores, if the system supports it."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process, cores)


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
