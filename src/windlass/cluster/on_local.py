"""Processes on this machine.

Each gets a session of its own, so Ctrl-C at the terminal reaches us alone and we decide who stops how.
Its standard error goes to a log file, whose tail explains a death that the process could not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from windlass.spec import errors
from windlass.spec.errors import ProcessFailed, WindlassError

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
    """A running process of ours. As a context manager it is gone when the block ends."""

    def __init__(self, name: str, module: str, args: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        self._asked = False
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors_to:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", module, *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors_to,
                start_new_session=True,
                env={"GLIBC_TUNABLES": ALLOCATOR, **os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what the process tells, until it closes its output. An error that it tells is raised."""
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a library printed; the log and the exit code say the rest
            if not isinstance(event, dict):
                continue
            if "error" in event:
                self._popen.wait()
                raise error_of(event["error"])
            yield event

    def result(self) -> dict[str, Any]:
        """Wait for the process to end well and return the `done` that it told."""
        done: dict[str, Any] = {}
        for event in self.events():
            done = event.get("done", done)
        self.check()
        return done

    def check(self, allowed: frozenset[int] = frozenset((0,))) -> int:
        """Wait for the end, and raise unless the exit code is an allowed one."""
        code = self._popen.wait()
        if code in allowed:
            return code
        raise ProcessFailed(f"the {self.name} process {_cause(code)}", hint=_tail(self.log))

    def interrupt(self) -> None:
        """Ask the process to end in its own time; asked a second time, end it by force."""
        self._popen.send_signal(signal.SIGKILL if self._asked else signal.SIGTERM)
        self._asked = True

    def stop(self, grace_s: float = 10.0) -> int:
        """End the process: politely, then by force."""
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
        if self._popen.stdout is not None:
            self._popen.stdout.close()


def error_of(told: dict[str, Any]) -> WindlassError:
    """Make the error again that another process told."""
    kind = getattr(errors, str(told.get("kind")), WindlassError)
    if not (isinstance(kind, type) and issubclass(kind, WindlassError)):
        kind = WindlassError
    return kind(str(told.get("message")), hint=told.get("hint"))


def _cause(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name
    more = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{more}"


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    shown = "\n    ".join(lines[-TAIL_LINES:])
    return f"the end of {log}:\n    {shown}" if shown else f"{log} is empty"
