"""The ranks of a run on this machine: started, polled and ended together.

Each rank's standard error goes directly into its own log file, so a rank never waits for its launcher and its
last lines survive it. Its standard output is a pipe, read as it fills.
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
    """What all ranks of a run execute."""

    folder: str
    """The run's directory, the same on all machines."""
    world: int
    rendezvous: str
    """Where rank 0 listens for the others."""
    threads: int | None = None
    """Maximum number of cores per rank."""


@dataclass(frozen=True)
class RankEvent:
    """An event of a rank."""

    rank: int
    event: dict[str, Any]


@dataclass(frozen=True)
class RemoteStopRequest:
    """A user interrupted the launcher of another machine."""


RankMessage = RankEvent | RankExit | RemoteStopRequest


class RankLauncher(Protocol):
    """Starts the ranks of one machine: this one, or another by way of its launcher."""

    def start(self, task: RankTask) -> None:
        """Start the ranks. Those of an earlier start must have ended."""

    def files(self) -> list[int]:
        """Return the descriptors that become readable when `poll` has something to return."""

    def poll(self) -> list[RankMessage]:
        """Return what happened since the last call, without waiting. A rank ends once."""

    def interrupt(self) -> None:
        """Request the ranks to stop after the current step."""

    def dismiss(self, grace_s: float) -> None:
        """Start to end all ranks: SIGTERM, and SIGKILL after `grace_s`. Does not wait."""

    def end(self, grace_s: float) -> None:
        """Wait for the end of all ranks after `dismiss`; none is left when this returns."""


class LocalRanks:
    """The ranks of this machine."""

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
        """The pids of the running processes."""
        return [rank.process.pid for rank in self._ranks if rank.process.look() is None]

    def files(self) -> list[int]:
        return [rank.output for rank in self._ranks if rank.output >= 0]

    def poll(self) -> list[RankMessage]:
        return [message for rank in self._ranks for message in rank.poll()]

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
    """One process of a run, its unfinished line of output, and whether its exit was returned."""

    def __init__(self, number: int, name: str, module: str, args: Sequence[str], log: Path) -> None:
        self.number, self.log = number, log
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process = LocalProcess(name, module, args, self.log)
        self.output = self.process.output.fileno()
        os.set_blocking(self.output, False)
        self._line = b""
        self._ended = False

    def poll(self) -> list[RankEvent | RankExit]:
        if self._ended:
            return []
        code = self.process.look()  # before reading, so that no event is missed
        messages: list[RankEvent | RankExit] = []
        for event in self._events():
            if "error" in event:
                messages.append(self._exit(1, event["error"]))
                break
            messages.append(RankEvent(self.number, event))
        if code is not None and not self._ended:
            messages.append(self._exit(code))
        return messages

    def close(self) -> None:
        self.process.output.close()
        self.output = -1

    def _exit(self, code: int, error: dict[str, Any] | None = None) -> RankExit:
        self._ended = True
        return RankExit(self.number, code, time.monotonic(), error, tail_of(self.log, self._log_start))

    def _events(self) -> list[dict[str, Any]]:
        *lines, self._line = (self._line + self._read()).split(b"\n")
        return [event for event in map(event_of, lines) if event is not None]

    def _read(self) -> bytes:
        """Read what is available. A process that it left behind may hold the pipe, so do not wait for EOF."""
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
