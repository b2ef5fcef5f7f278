"""Child processes on this machine.

Each gets a session of its own, so Ctrl-C at the terminal reaches only the launcher, which decides what to
stop. Its standard error goes to a log file, whose tail explains a crash that the process could not report.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from windlass.spec import errors
from windlass.spec.errors import ProcessFailed, WindlassError
from windlass.spec.protocol.entrypoint import PARENT

TAIL_LINES = 12
ALLOCATOR = ":".join(
    (
        "glibc.malloc.hugetlb=1",
        f"glibc.malloc.mmap_threshold={1 << 30}",
        f"glibc.malloc.trim_threshold={1 << 33}",
        f"glibc.malloc.top_pad={1 << 28}",
    )
)
"""Large pages, kept instead of given back: a training step allocates the same gigabyte again and again, and
without this a tenth of it goes into page faults (docs/benchmarks.md). Other C libraries ignore it."""


class LocalProcess:
    """A running child process. As a context manager it is stopped when the block ends."""

    def __init__(self, name: str, module: str, args: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        self._stop_requested = False
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors_to:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", module, *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors_to,
                start_new_session=True,
                env={
                    "GLIBC_TUNABLES": ALLOCATOR,
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    PARENT: str(os.getpid()),
                },
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    @property
    def output(self) -> IO[bytes]:
        """Where its events come from."""
        assert self._popen.stdout is not None
        return self._popen.stdout

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the process until it closes its output. An error event is raised."""
        for line in self.output:
            event = event_of(line)
            if event is None:
                continue
            if "error" in event:
                self._popen.wait()
                raise error_of(event["error"])
            yield event

    def result(self) -> dict[str, Any]:
        """Wait for the process to succeed and return its `done` event."""
        done: dict[str, Any] = {}
        for event in self.events():
            done = event.get("done", done)
        self.check()
        return done

    def check(self, allowed: frozenset[int] = frozenset((0,))) -> int:
        """Wait for the end, and raise unless the exit code is allowed."""
        code = self._popen.wait()
        if code in allowed:
            return code
        raise ProcessFailed(f"the {self.name} process {cause_of(code)}", hint=tail_of(self.log))

    def look(self) -> int | None:
        """Return the exit code once it has ended, and kill what it started and left behind.

        They are one process group, whose number cannot be reused until the leader is reaped: so the others
        are killed first.
        """
        if self._popen.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self._kill_group()
        return self._popen.wait()

    def kill(self) -> int:
        """Kill the process and all that it started, at once."""
        if self._popen.returncode is None:
            self._kill_group()
        return self._popen.wait()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """Send SIGTERM; on the second call, SIGKILL."""
        self._popen.send_signal(signal.SIGKILL if self._stop_requested else signal.SIGTERM)
        self._stop_requested = True

    def stop(self, grace_s: float = 10.0) -> int:
        """Send SIGTERM, and SIGKILL after the grace; return the exit code."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
            try:
                self._popen.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        return self._popen.wait()

    def __enter__(self) -> LocalProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.output.close()


def event_of(line: bytes) -> dict[str, Any] | None:
    """Read an event from a line of output; None for other output, e.g. of a library."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def error_of(event: dict[str, Any]) -> WindlassError:
    """Return the error that another process reported."""
    kind = getattr(errors, str(event.get("kind")), WindlassError)
    if not (isinstance(kind, type) and issubclass(kind, WindlassError)):
        kind = WindlassError
    return kind(str(event.get("message")), hint=event.get("hint"))


def cause_of(code: int) -> str:
    """Describe how a process ended."""
    if code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name
    more = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{more}"


def tail_of(log: Path, start: int = 0) -> str:
    """Return the last lines of a log, from byte `start` on."""
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines() if log.exists() else []
    shown = "\n    ".join(lines[-TAIL_LINES:])
    return f"the end of {log}:\n    {shown}" if shown else f"{log} is empty"
