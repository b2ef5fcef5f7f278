"""Runs all ranks of a run, on all machines, to one outcome.

    start all ranks -> poll their events -> decide the outcome (`exit_status`) -> end all ranks

Exactly one launcher decides; the launchers of other machines obey it (`remote_ranks`).
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from windlass.cluster.launch.exit_status import LaunchOutcome, RankExit, decide, error_from
from windlass.cluster.launch.local_ranks import (
    RankEvent,
    RankLauncher,
    RankMessage,
    RankTask,
    RemoteStopRequest,
)
from windlass.cluster.launch.rank_log import RankLog
from windlass.spec.protocol.link import wait_for

LOOK_EVERY_S = 0.05
GRACE_S = 1.0
"""Between SIGTERM and SIGKILL for ranks whose run has failed: they have no peers left to save with."""
PORTS = range(20000, 32000)
"""Below the ephemeral ports of the system, so that a free one stays free until rank 0 listens."""

Tell = Callable[[dict[str, Any]], None]


class Launch:
    """The ranks of one run and their common outcome."""

    def __init__(self, launchers: Sequence[RankLauncher]) -> None:
        self._launchers = launchers
        self.stop_requests = 0
        """How often a stop was requested."""

    def run(self, task: RankTask, tell: Tell) -> bool:
        """Run the task. Return False when it was stopped; raise the error if it failed."""
        log = RankLog(Path(task.folder), task.world)
        exits: dict[int, RankExit] = {}
        try:
            for launcher in self._launchers:
                launcher.start(task)
            outcome = self._follow(task.world, exits, tell, log)
        finally:
            self._end()
            log.gather(last=True)
        if outcome.culprit is not None:
            raise error_from(outcome.culprit, exits.values(), task.world, str(log.path))
        return outcome.state == "done"

    def interrupt(self) -> None:
        """Request all ranks to stop after the current step and save; on the second call, end them.

        Safe to call from a signal handler: it only counts.
        """
        self.stop_requests += 1

    def _follow(self, world: int, exits: dict[int, RankExit], tell: Tell, log: RankLog) -> LaunchOutcome:
        last_event_s, passed_on = time.monotonic(), False
        while self.stop_requests < 2:
            if self.stop_requests and not passed_on:
                passed_on = True
                for launcher in self._launchers:
                    launcher.interrupt()
            for message in self._poll():
                if isinstance(message, RankExit):
                    exits.setdefault(message.rank, message)
                elif isinstance(message, RemoteStopRequest):
                    self.interrupt()
                else:
                    last_event_s = time.monotonic()
                    tell(named(message))
            log.gather()
            now_s = time.monotonic()
            outcome = decide(
                exits.values(),
                world,
                now_s=now_s,
                last_event_s=last_event_s,
                stop_requested=self.stop_requests > 0,
            )
            if outcome.state != "running":
                return outcome
        return LaunchOutcome("stopped")

    def _end(self) -> None:
        """End the ranks of all machines at the same time."""
        for launcher in self._launchers:
            launcher.dismiss(GRACE_S)
        for launcher in self._launchers:
            launcher.end(GRACE_S)

    def _poll(self) -> list[RankMessage]:
        wait_for([file for launcher in self._launchers for file in launcher.files()], LOOK_EVERY_S)
        return [message for launcher in self._launchers for message in launcher.poll()]


def named(message: RankEvent) -> dict[str, Any]:
    """Return an event for listeners: messages of ranks other than 0 are prefixed with the rank."""
    if message.rank == 0 or "message" not in message.event:
        return message.event
    return {**message.event, "message": f"rank {message.rank}: {message.event['message']}"}


@contextlib.contextmanager
def interrupts(on_signal: Callable[[], None]) -> Iterator[None]:
    """While the block runs, Ctrl-C and SIGTERM call `on_signal` instead of ending this process."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        on_signal()

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port(host: str, start: int) -> int:
    """Return a free port of this machine, searching from the `start`-th of PORTS."""
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port
    raise OSError(f"no port of {PORTS.start} to {PORTS.stop - 1} is free at {host}")
