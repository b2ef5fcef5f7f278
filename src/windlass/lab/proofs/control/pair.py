"""Two control processes on one database, which can be killed, frozen and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from windlass.control.plane.leader_lease import leader
from windlass.spec.errors import ProcessFailed
from windlass.spec.processes import CONTROL_PROOF
from windlass.store.database import Database

BEGIN_S = 120.0
"""Start-up timeout of a process, in seconds, on a busy machine."""
LOOK_S = 0.01


class ControllerProcess:
    """One control process, across restarts."""

    def __init__(self, home: Path, state: str, number: int) -> None:
        self._home, self._state = home, state
        self._log = home / f"control-{number}.log"
        self.url = ""
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", CONTROL_PROOF, "--home", str(self._home), "--port", port]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*command, "--state", self._state],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def listen(self) -> str:
        """Wait until it listens; return its URL."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ProcessFailed(f"a control process ended at its start: {self._log}")
        self.url = str(json.loads(line)["listening"]["url"])
        return self.url

    def leads(self, database: Database) -> bool:
        return bool(self.url) and leader(database)[2] == self.url

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def start_again(self) -> None:
        self.process = self._started()

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def pair(home: Path, state: str) -> Iterator[tuple[ControllerProcess, ControllerProcess]]:
    """Start two control processes; end both after the block."""
    both = (ControllerProcess(home, state, 1), ControllerProcess(home, state, 2))
    try:
        for each in both:
            each.listen()
        yield both
    finally:
        for each in both:
            with contextlib.suppress(ProcessLookupError):
                each.thaw()
            each.kill()


def seconds_to_another(database: Database, before: int, max_s: float = 60.0) -> float | None:
    """Wait for a new epoch; return the seconds that took, None on timeout."""
    began = time.monotonic()
    while time.monotonic() - began < max_s:
        if leader(database)[0] > before:
            return time.monotonic() - began
        time.sleep(LOOK_S)
    return None
