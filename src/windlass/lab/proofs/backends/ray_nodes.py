"""A real Ray cluster of several nodes on this machine, each with its own loopback address.

For proofs and tests. Ray listens on every interface, so the cluster requires a random token.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from windlass.spec.errors import ProcessFailed

START_S, END_S = 150.0, 20.0
LOOK_EVERY_S = 0.1
NODE = [
    "--block",
    "--disable-usage-stats",
    "--include-log-monitor=false",
    "--object-store-memory=80000000",
    "--num-cpus=2",
]


class RayNodes:
    """Nodes 0, 1, 2 ... of which node 0 is the head; `close` ends all of them."""

    def __init__(self, count: int, pythonpath: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wr-"))  # short: Ray makes sockets below it
        self.port = _free_port()
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.folder),
            # Detect a dead node in a few seconds, not in fifteen; a busy node is not dead.
            "RAY_health_check_initial_delay_ms": "2000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "3000",
            "RAY_health_check_failure_threshold": "4",
            "RAY_raylet_start_wait_time_s": "120",
        }
        self._own = {**os.environ, **self.environment, "PYTHONPATH": pythonpath}
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for number in range(count):
                self.add(number)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"{self.host(0)}:{self.port}"

    def host(self, number: int) -> str:
        return f"127.0.0.{number + 2}"

    def add(self, number: int) -> None:
        """Start a node. Start them one by one: two at the same time take the same socket, and one fails."""
        where = (
            ["--head", f"--port={self.port}", "--include-dashboard=false", "--no-monitor"]
            if number == 0
            else [f"--address={self.address}"]
        )
        ray = str(Path(sys.executable).parent / "ray")
        with (self.folder / f"node-{number}.log").open("wb") as log:
            self._nodes[number] = subprocess.Popen(
                [ray, "start", *where, f"--node-ip-address={self.host(number)}", *NODE],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._own,
                start_new_session=True,
            )
        self._wait_for(number)

    def kill(self, number: int) -> None:
        """Kill all processes of a node at once, like a power cut."""
        top = self._nodes.pop(number)
        for process in _processes_of(top.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        top.wait()

    def close(self) -> None:
        for number in sorted(self._nodes, reverse=True):
            self.kill(number)
        until = time.monotonic() + END_S
        while self.folder.exists() and time.monotonic() < until:  # ending processes of Ray still write
            shutil.rmtree(self.folder, ignore_errors=True)
            time.sleep(LOOK_EVERY_S)

    def _wait_for(self, number: int) -> None:
        """Wait until a node has joined."""
        until = time.monotonic() + START_S
        log = self.folder / f"node-{number}.log"
        while "Ray runtime started" not in log.read_text(errors="replace"):
            if self._nodes[number].poll() is not None or time.monotonic() > until:
                last_line = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise ProcessFailed(f"node {number} of a Ray cluster did not start", hint=" ".join(last_line))
            time.sleep(0.1)


def _processes_of(session: int) -> list[psutil.Process]:
    """Return a session's processes and all their descendants, which have their own sessions."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == session:
                found += [process, *process.children(recursive=True)]
    return found


def _free_port() -> int:
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
