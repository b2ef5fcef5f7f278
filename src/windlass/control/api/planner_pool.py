"""Plans for whoever asks the control API, made by processes that are ended when they take too long.

A search over a large fleet takes seconds of a core. In processes of their own the searches hold up no other
answer, and each can be ended. A process is kept for the next question, for a while: to start one takes most
of a second.
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
"""For one plan; whoever asks can ask for less."""
IDLE_S = 300.0
"""So long a process waits for the next question before its memory is given back."""


class Planners:
    """At most `workers` plans at a time; some more may wait."""

    def __init__(self, workers: int = WORKERS, max_s: float = MAX_S, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._free = [Planner(max_s) for _ in range(workers)]
        self._all = tuple(self._free)
        self._room = asyncio.Semaphore(workers)
        self._waiting = 0

    async def plan(self, asked: PlanBody, has_left: Callable[[], Awaitable[bool]]) -> dict[str, Any]:
        """Return a plan; one whose client has left meanwhile is not begun."""
        if self._waiting >= MAX_WAITING:
            raise ControlError("in_use", f"{self._waiting} others wait for a plan", hint="ask again shortly")
        self._waiting += 1
        try:
            async with self._room:
                if await has_left():
                    raise ControlError("in_use", "nobody waits for this plan any more")
                planner = self._free.pop()  # the one that was used last, so that others may go
                try:
                    return await run_in_threadpool(planner.ask, asked)
                finally:
                    self._free.append(planner)
                    self._rest(planner)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        for planner in self._all:
            planner.close()

    def _rest(self, planner: Planner) -> None:
        """End a process that nobody has asked again after a while."""
        asked = planner.asked

        def look() -> None:
            if planner.asked == asked:
                planner.close()

        asyncio.get_running_loop().call_later(self._idle_s, look)


class Planner:
    """One process, started when it is first asked and again after it was ended."""

    def __init__(self, max_s: float) -> None:
        self.asked = 0
        """How many questions it got."""
        self._max_s = max_s
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, asked: PlanBody) -> dict[str, Any]:
        """Return the plan, or raise why there is none."""
        self.asked += 1
        begin = time.monotonic()
        told = self._exchange(asked.model_dump_json().encode() + b"\n")
        if "plan" in told:
            return dict(told["plan"])
        if told:
            raise ControlError("refused", told["refused"]["message"], hint=told["refused"]["hint"])
        if time.monotonic() - begin >= self._max_s:
            raise ControlError(
                "refused",
                f"no plan was found within {self._max_s:g} s",
                hint='ask for fewer devices, or with "search": "greedy"',
            )
        raise ControlError("failed", "the process that plans has ended", hint="its log says why")

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
        """Send a question and wait for its answer; empty if the process has ended, or was made to."""
        process = self._process = self._process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._max_s, process.kill)
        timer.start()
        told = b""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()
            told = process.stdout.readline()
        timer.cancel()
        if not told.endswith(b"\n"):
            self.close()
            return {}
        return dict(json.loads(told))


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", PLANNER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
