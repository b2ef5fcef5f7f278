"""Runs all ranks of a run to one end, wherever they are.

    start everywhere -> hear everybody -> decide, in exit_status.py -> end everywhere

Exactly one launcher decides; other machines' launchers are hands of it (rendezvous.py).
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
"""Between SIGTERM and SIGKILL for ranks whose run has failed: no peer is left to agree with."""
PORTS = range(20000, 32000)
"""Below those that systems give to whoever connects, so a free one stays free until rank 0 listens."""

Tell = Callable[[dict[str, Any]], None]


class Launch:
    """The ranks of one run and their common end."""

    def __init__(self, hands: Sequence[RankLauncher]) -> None:
        self._hands = hands
        self.asked = 0
        """How often somebody asked for the end."""

    def run(self, task: RankTask, tell: Tell) -> bool:
        """Do the task. Return False when it was stopped; raise what went wrong with it."""
        log = RankLog(Path(task.folder), task.world)
        endings: dict[int, RankExit] = {}
        try:
            for hand in self._hands:
                hand.start(task)
            verdict = self._follow(task.world, endings, tell, log)
        finally:
            self._end()
            log.gather(last=True)
        if verdict.culprit is not None:
            raise error_from(verdict.culprit, endings.values(), task.world, str(log.path))
        return verdict.state == "done"

    def interrupt(self) -> None:
        """Ask all ranks to stop after the current step and save; asked again, end them.

        Safe to call from a signal handler: it only leaves word.
        """
        self.asked += 1

    def _follow(self, world: int, endings: dict[int, RankExit], tell: Tell, log: RankLog) -> LaunchOutcome:
        heard_at_s, passed_on = time.monotonic(), False
        while self.asked < 2:
            if self.asked and not passed_on:
                passed_on = True
                for hand in self._hands:
                    hand.interrupt()
            for heard in self._hear():
                if isinstance(heard, RankExit):
                    endings.setdefault(heard.rank, heard)
                elif isinstance(heard, RemoteStopRequest):
                    self.interrupt()
                else:
                    heard_at_s = time.monotonic()
                    tell(named(heard))
            log.gather()
            now_s = time.monotonic()
            verdict = decide(
                endings.values(), world, now_s=now_s, heard_at_s=heard_at_s, asked=self.asked > 0
            )
            if verdict.state != "running":
                return verdict
        return LaunchOutcome("stopped")

    def _end(self) -> None:
        """All machines at the same time, so that it takes no longer than one."""
        for hand in self._hands:
            hand.dismiss(GRACE_S)
        for hand in self._hands:
            hand.end(GRACE_S)

    def _hear(self) -> list[RankMessage]:
        wait_for([file for hand in self._hands for file in hand.files()], LOOK_EVERY_S)
        return [heard for hand in self._hands for heard in hand.hear()]


def named(told: RankEvent) -> dict[str, Any]:
    """Return an event as listeners get it: a warning of a rank beside the first says whose it is."""
    if told.rank == 0 or "message" not in told.event:
        return told.event
    return {**told.event, "message": f"rank {told.rank}: {told.event['message']}"}


@contextlib.contextmanager
def interrupts(asked: Callable[[], None]) -> Iterator[None]:
    """While the block runs, Ctrl-C and SIGTERM call `asked` instead of ending this process."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        asked()

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port(host: str, start: int) -> int:
    """Return a port at which nobody listens on this machine, looking from the `start`-th on."""
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port
    raise OSError(f"no port of {PORTS.start} to {PORTS.stop - 1} is free at {host}")
