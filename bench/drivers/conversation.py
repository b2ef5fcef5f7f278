"""What every peer's driver says to `windlass bench serve`, one JSON object a line.

    in   {"model", "precision", "threads", "slots", "context", "scratch"}     once
    out  {"ready": {"version", "setting"}} or {"cannot": why}
    in   {"prompts", "output", "concurrency"}                                 any number of times
    out  {"done": {"requests": [{"sent_s", "times_s", "tokens"}]}}

A driver keeps `concurrency` requests in flight, greedy, each until it has `output` tokens. Times are those
of one monotonic clock. What a library prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

PR_SET_PDEATHSIG = 1


@dataclass
class Asked:
    """One request, and when each of its tokens came."""

    prompt: list[int]
    sent_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def came(self, token: int) -> None:
        self.times_s.append(time.monotonic())
        self.tokens.append(token)

    def as_json(self) -> dict[str, Any]:
        return {"sent_s": self.sent_s, "times_s": self.times_s, "tokens": self.tokens}


class Peer(Protocol):
    """A library with a model loaded."""

    version: str
    setting: str

    def answer(self, requests: list[Asked], output: int, concurrency: int) -> None:
        """Fill in all requests."""


class CannotError(Exception):
    """What was asked for is not in this library."""


def converse(load: Any, convert: Any = None) -> None:
    """Be a driver: `convert(job, target)` runs in a process of its own, `load(job, target)` in this one."""
    _die_with_parent()
    if sys.argv[1:2] == ["convert"]:
        convert(json.loads(sys.argv[2]), Path(sys.argv[3]))
        return
    say = _private_output()
    job = json.loads(sys.stdin.readline())
    try:
        peer = load(job, _converted(job) if convert else Path(job["model"]))
    except CannotError as reason:
        say({"cannot": str(reason)})
        return
    say({"ready": {"version": peer.version, "setting": peer.setting}})
    for line in sys.stdin:
        task = json.loads(line)
        requests = [Asked(prompt) for prompt in task["prompts"]]
        peer.answer(requests, task["output"], task["concurrency"])
        say({"done": {"requests": [request.as_json() for request in requests]}})


def _converted(job: dict[str, Any]) -> Path:
    """Convert once, elsewhere: what conversion takes must not count as the library's memory."""
    name = Path(sys.argv[0]).stem
    target = Path(job["scratch"]) / f"{name}-{Path(job['model']).name}-{job['precision']}"
    done = target.with_suffix(".done")
    if not done.exists():
        target.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, sys.argv[0], "convert", json.dumps(job), str(target)]
        if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode:
            raise CannotError("the model could not be converted; the log says why")
        done.touch()
    return target


def _die_with_parent() -> None:
    """Leave nothing running when the bench is killed, not even a conversion (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _private_output() -> Any:
    """Keep standard output for the conversation alone."""
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        ours.write(json.dumps(message) + "\n")

    return say
