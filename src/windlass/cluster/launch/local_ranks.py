"""The ranks of a run that live on this machine: started together, heard together, ended together.

Each rank's standard error goes straight into a log file of its own, so a rank never waits for its launcher
and its last words survive it. Its standard output is a pipe, read as it fills.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from windlass.cluster.launch.cores import divide_cores, own_cores
from windlass.cluster.launch.exit_status import RankExit
from windlass.cluster.launch.local_process import LocalProcess, event_of, tail_of
from windlass.spec.protocol.rank import RankInfo

LOGS = "logs"
READ_BYTES = 1 << 16


@dataclass(frozen=True)
class RankTask:
    """What all ranks of a run do together."""

    folder: str
    """The run's directory, the same on all machines."""
    world: int
    rendezvous: str
    """Where rank 0 listens for the others."""
    threads: int | None = None
    """At most so many cores a rank."""


@dataclass(frozen=True)
class RankEvent:
    """An event that a rank told."""

    rank: int
    event: dict[str, Any]


@dataclass(frozen=True)
class RemoteStopRequest:
    """Somebody at another machine asked for the end of the run."""


RankMessage = RankEvent | RankExit | RemoteStopRequest


class RankLauncher(Protocol):
    """A machine's ranks: those of this machine, or those behind another launcher."""

    def start(self, task: RankTask) -> None:
        """Start the ranks. Those of an earlier start must have ended."""

    def files(self) -> list[int]:
        """Return the descriptors that become readable when there is something to hear."""

    def hear(self) -> list[RankMessage]:
        """Return what happened since the last call, without waiting. A rank ends once."""

    def interrupt(self) -> None:
        """Ask the ranks to stop after the current step."""

    def dismiss(self, grace_s: float) -> None:
        """Begin to end all ranks: politely, and after `grace_s` by force. Does not wait for it."""

    def end(self, grace_s: float) -> None:
        """Wait for the end of all ranks, which were dismissed; none is left when this returns."""


class LocalRanks:
    """Hands on this machine."""

    def __init__(self, ranks: Sequence[int], module: str) -> None:
        self._numbers, self._module = ranks, module
        self._ranks: list[RankProcess] = []

    def start(self, task: RankTask) -> None:
        assert not self.pids, "ranks of an earlier start are left"
        shares = divide_cores(own_cores(), len(self._numbers), task.threads)
        for number, cores in zip(self._numbers, shares, strict=True):
            member = RankInfo(number, task.world, task.rendezvous, cores) if task.world > 1 else RankInfo()
            args, log = ["run", task.folder, *member.arguments], log_of(Path(task.folder), number)
            self._ranks.append(RankProcess(number, f"rank {number}", self._module, args, log))

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [rank.process.pid for rank in self._ranks if rank.process.look() is None]

    def files(self) -> list[int]:
        return [rank.output for rank in self._ranks if rank.output >= 0]

    def hear(self) -> list[RankMessage]:
        return [heard for rank in self._ranks for heard in rank.hear()]

    def interrupt(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def dismiss(self, grace_s: float) -> None:
        self.interrupt()

    def end(self, grace_s: float) -> None:
        until = time.monotonic() + grace_s
        while self.pids and time.monotonic() < until:
            time.sleep(0.02)
        for rank in self._ranks:
            rank.process.kill()
            rank.close()
        self._ranks = []


class RankProcess:
    """One process of a run, its unfinished line, and whether its end was told."""

    def __init__(self, number: int, name: str, module: str, args: Sequence[str], log: Path) -> None:
        self.number, self.log = number, log
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process = LocalProcess(name, module, args, self.log)
        self.output = self.process.output.fileno()
        os.set_blocking(self.output, False)
        self._line = b""
        self._ended = False

    def hear(self) -> list[RankEvent | RankExit]:
        if self._ended:
            return []
        code = self.process.look()  # before reading, so that nothing told is missed
        heard: list[RankEvent | RankExit] = []
        for event in self._events():
            if "error" in event:
                heard.append(self._ending(1, event["error"]))
                break
            heard.append(RankEvent(self.number, event))
        if code is not None and not self._ended:
            heard.append(self._ending(code))
        return heard

    def close(self) -> None:
        self.process.output.close()
        self.output = -1

    def _ending(self, code: int, told: dict[str, Any] | None = None) -> RankExit:
        self._ended = True
        return RankExit(self.number, code, time.monotonic(), told, tail_of(self.log, self._log_start))

    def _events(self) -> list[dict[str, Any]]:
        *lines, self._line = (self._line + self._read()).split(b"\n")
        return [event for event in map(event_of, lines) if event is not None]

    def _read(self) -> bytes:
        """Read all there is. A process that it left behind may hold the pipe, so the end is not awaited."""
        parts: list[bytes] = []
        while self.output >= 0:
            try:
                part = os.read(self.output, READ_BYTES)
            except BlockingIOError:
                break
            if not part:
                self.close()
                break
            parts.append(part)
        return b"".join(parts)


def log_of(folder: Path, rank: int) -> Path:
    return folder / LOGS / f"rank-{rank}.log"
