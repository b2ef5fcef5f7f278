"""Runs on parameter servers: starts the processes, follows them, and replaces those that die.

    start servers and workers -> read their events -> replace the dead, start or dismiss workers -> until the
    first server ends the run

The first server decides everything about training (windlass.train.server); this module only keeps the
processes alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from windlass.cluster.launch.cores import divide_cores, own_cores
from windlass.cluster.launch.exit_status import RankExit
from windlass.cluster.launch.launcher import interrupts
from windlass.cluster.launch.local_process import cause_of, error_of
from windlass.cluster.launch.local_ranks import LOGS, RankProcess
from windlass.runs.elastic_run import read_workers_request, write_workers_request
from windlass.runs.training import RunFolder
from windlass.spec.errors import ProcessFailed
from windlass.spec.processes import PARAMETER_SERVER
from windlass.spec.protocol.entrypoint import INTERRUPTED
from windlass.spec.protocol.link import wait_for
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.protocol.server_registry import CANNOT_FOLLOW, log_file
from windlass.spec.run import JOURNAL
from windlass.store.journal import Journal
from windlass.store.lock import locked
from windlass.store.settings_file import resume_run, who
from windlass.store.store_dir import StoreDir

LOOK_EVERY_S = 0.05
GRACE_S = 2.0
MAX_DEATHS = 6
"""Deaths in a row without a step between them, after which the run fails."""

Tell = Callable[[dict[str, Any]], None]


def train_served(folder: RunFolder, tell: Tell) -> bool:
    """Train on parameter servers. Return False when the run was stopped."""
    with locked(folder.path / ".lock", f"run {folder.name}"):
        resume_run(folder.path)
        write_workers_request(folder.path, folder.load().layout.world, who())
        server_run = ServerRun(folder, tell)
        with interrupts(server_run.interrupt):
            return server_run.run()


class ServerRun:
    """The processes of one run on parameter servers."""

    def __init__(self, folder: RunFolder, tell: Tell) -> None:
        self._folder, self._publish = folder, tell
        run = folder.load()
        self._servers, self._threads = run.job.sync.servers, run.job.machine.threads
        self._processes: dict[str, RankProcess] = {}
        self._wanted = 0
        self._interruptions = self._deaths = 0
        self._stopping = False
        self._dismissed: list[RankProcess] = []

    def interrupt(self) -> None:
        """Stop the run with a checkpoint; a second call ends all processes. Safe in a signal handler."""
        self._interruptions += 1

    def run(self) -> bool:
        """Keep all processes alive until the run is over."""
        try:
            for number in range(self._servers):
                self._start_server(number)
            while self._interruptions < 2:
                self._scale()
                outcome = self._look()
                if outcome is not None:
                    return outcome
            return False
        finally:
            self._end()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running processes, by name."""
        found = {name: process.process for name, process in self._processes.items()}
        return {name: process.pid for name, process in found.items() if process.look() is None}

    def _look(self) -> bool | None:
        """Read the events of all processes once; return whether the run finished, None while it is active."""
        if self._interruptions and not self._stopping:
            self._stopping = True
            self._processes[_server(0)].process.interrupt()
        wait_for([process.output for process in self._processes.values()], LOOK_EVERY_S)
        for name, process in list(self._processes.items()):
            if self._processes.get(name) is not process:
                continue  # it was replaced meanwhile
            for message in process.poll():
                if isinstance(message, RankExit):
                    outcome = self._ended(name, message)
                    if outcome is not None:
                        return outcome
                else:
                    self._on_event(name, message.event)
        return None

    def _on_event(self, name: str, event: dict[str, Any]) -> None:
        if event.get("event") in ("step", "vectors"):
            self._deaths = 0
        if name == _server(0):
            self._publish(event)
        elif event.get("event") == "warning":
            self._publish({**event, "message": f"{name}: {event['message']}"})

    def _ended(self, name: str, ending: RankExit) -> bool | None:
        """Decide what the end of a process means."""
        process = self._processes.pop(name)
        process.close()
        if ending.error is not None:
            raise error_of(ending.error)
        if name == _server(0) and ending.code in (0, INTERRUPTED):
            return ending.code == 0
        if name.startswith("worker") and ending.code in (0, INTERRUPTED):
            return None  # it was dismissed
        self._replace(name, ending)
        return None

    def _replace(self, name: str, ending: RankExit) -> None:
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            raise ProcessFailed(
                f"{name} {cause_of(ending.code)}, and so did other processes", hint=ending.tail
            )
        if ending.code == CANNOT_FOLLOW:
            self._go_back()
            return
        self._log_event("replaced", who=name, message=f"{name} {cause_of(ending.code)}")
        if name.startswith("server"):
            self._start_server(int(name.split()[1]))

    def _go_back(self) -> None:
        """Restart all servers from the last checkpoint, because one of them has lost updates."""
        for number in range(self._servers):
            process = self._processes.pop(_server(number), None)
            if process is not None:
                process.process.kill()
                process.close()
            log_file(self._folder.path, number).unlink(missing_ok=True)
        self._log_event("went_back", step=self._folder.step, message="a server has lost updates")
        for number in range(self._servers):
            self._start_server(number)

    def _scale(self) -> None:
        """Start or dismiss workers to reach the requested number."""
        count = int((read_workers_request(self._folder.path) or {"workers": 1})["workers"])
        if self._wanted and count != self._wanted:
            self._log_event("scaled", workers=count, before=self._wanted)
        self._wanted = count
        for number in range(count):
            if _worker(number) not in self._processes and not self._stopping:
                self._start_worker(number, count)
        for name, process in self._processes.items():
            if name.startswith("worker") and int(name.split()[1]) >= count and process.process.look() is None:
                self._dismiss(process)

    def _dismiss(self, process: RankProcess) -> None:
        """Interrupt a worker once: it leaves after its current task."""
        if process not in self._dismissed:
            self._dismissed.append(process)
            process.process.interrupt()

    def _start_server(self, number: int) -> None:
        self._start(_server(number), number, ["serve", str(self._folder.path), "--rank", str(number)])

    def _start_worker(self, number: int, world: int) -> None:
        """A single worker uses all cores, as a run of one process does; several divide them."""
        cores = divide_cores(own_cores(), world, self._threads)[number] if world > 1 else ()
        member = RankInfo(number, max(2, world), "", cores)
        self._start(_worker(number), number, ["work", str(self._folder.path), *member.arguments])

    def _start(self, name: str, number: int, args: list[str]) -> None:
        log = self._folder.path / LOGS / f"{name.replace(' ', '-')}.log"
        self._processes[name] = RankProcess(number, name, PARAMETER_SERVER, args, log)

    def _log_event(self, event: str, **facts: Any) -> None:
        body = {"event": event, "time": round(time.time(), 3), **facts}
        Journal(StoreDir(self._folder.path), JOURNAL).append(body, sync=True)
        self._publish(body)

    def _end(self) -> None:
        """End all processes; workers get GRACE_S to leave."""
        processes = [process.process for process in self._processes.values()]
        for process in processes:
            if process.look() is None:
                process.interrupt()
        until = time.monotonic() + (GRACE_S if self._interruptions < 2 else 0.0)
        workers = [p.process for name, p in self._processes.items() if name.startswith("worker")]
        while time.monotonic() < until and any(worker.look() is None for worker in workers):
            time.sleep(LOOK_EVERY_S)
        for rank in self._processes.values():
            rank.process.kill()
            rank.close()
        self._processes = {}


def _server(number: int) -> str:
    return f"server {number}"


def _worker(number: int) -> str:
    return f"worker {number}"
