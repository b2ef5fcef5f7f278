"""A pool of planner processes for the control API; a process that takes too long is killed.

A search over a large fleet takes seconds of a core. In their own processes searches delay no other response,
and each can be killed. A process is kept for the next request for a while, because starting one takes most of
a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from windlass.control.api.control_errors import ControlError
from windlass.spec.processes import PLANNER
from windlass.spec.protocol.control import PlanBody

WORKERS = 2
MAX_WAITING = 16
MAX_S = 30.0
"""Time limit of one plan; callers may give a shorter one."""
IDLE_S = 300.0
"""How long an idle process is kept before it is ended to free its memory."""


class Planners:
    """At most `workers` plans at a time; up to MAX_WAITING requests are queued."""

    def __init__(self, workers: int = WORKERS, max_s: float = MAX_S, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._free = [Planner(max_s) for _ in range(workers)]
        self._all = tuple(self._free)
        self._room = asyncio.Semaphore(workers)
        self._waiting = 0

    async def plan(self, body: PlanBody, has_left: Callable[[], Awaitable[bool]]) -> dict[str, Any]:
        """Return a plan; it is not started if the client has disconnected meanwhile."""
        if self._waiting >= MAX_WAITING:
            raise ControlError(
                "in_use", f"{self._waiting} other requests wait for a plan", hint="try again shortly"
            )
        self._waiting += 1
        try:
            async with self._room:
                if await has_left():
                    raise ControlError("in_use", "the client has disconnected")
                planner = self._free.pop()  # the most recently used, so that others become idle
                try:
                    return await run_in_threadpool(planner.plan, body)
                finally:
                    self._free.append(planner)
                    self._rest(planner)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        for planner in self._all:
            planner.close()

    def _rest(self, planner: Planner) -> None:
        """End a process that gets no request for a while."""
        count = planner.num_requests

        def look() -> None:
            if planner.num_requests == count:
                planner.close()

        asyncio.get_running_loop().call_later(self._idle_s, look)


class Planner:
    """One process, started at the first request and again after it was ended."""

    def __init__(self, max_s: float) -> None:
        self.num_requests = 0
        """How many requests it got."""
        self._max_s = max_s
        self._process: subprocess.Popen[bytes] | None = None

    def plan(self, body: PlanBody) -> dict[str, Any]:
        """Return the plan, or raise the refusal."""
        self.num_requests += 1
        begin = time.monotonic()
        reply = self._exchange(body.model_dump_json().encode() + b"\n")
        if "plan" in reply:
            return dict(reply["plan"])
        if reply:
            raise ControlError("refused", reply["refused"]["message"], hint=reply["refused"]["hint"])
        if time.monotonic() - begin >= self._max_s:
            raise ControlError(
                "refused",
                f"no plan was found within {self._max_s:g} s",
                hint='request fewer devices, or use "search": "greedy"',
            )
        raise ControlError("failed", "the planner process has ended", hint="its log says why")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _exchange(self, line: bytes) -> dict[str, Any]:
        """Send a request and wait for its reply; empty if the process ended or was killed."""
        process = self._process = self._process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._max_s, process.kill)
        timer.start()
        reply = b""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()
            reply = process.stdout.readline()
        timer.cancel()
        if not reply.endswith(b"\n"):
            self.close()
            return {}
        return dict(json.loads(reply))


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", PLANNER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
