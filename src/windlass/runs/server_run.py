"""Runs on parameter servers: started, followed, and kept whole while processes die.

    start servers and workers -> hear them -> replace the dead, start or dismiss workers -> until the first
    server says that the run is over

The first server decides everything about training (windlass.train.server); here is only who lives.
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
from windlass.runs.elastic_run import want, wanted
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
"""In a row without a step between them: then it is no accident."""

Tell = Callable[[dict[str, Any]], None]


def train_served(folder: RunFolder, tell: Tell) -> bool:
    """Do the run on parameter servers. Return False when it was stopped."""
    with locked(folder.path / ".lock", f"run {folder.name}"):
        resume_run(folder.path)
        want(folder.path, folder.load().layout.world, who())
        troupe = Troupe(folder, tell)
        with interrupts(troupe.interrupt):
            return troupe.run()


class Troupe:
    """The processes of one run."""

    def __init__(self, folder: RunFolder, tell: Tell) -> None:
        self._folder, self._pass_on = folder, tell
        run = folder.load()
        self._servers, self._threads = run.job.sync.servers, run.job.machine.threads
        self._processes: dict[str, RankProcess] = {}
        self._wanted = 0
        self._asked = self._deaths = 0
        self._told_stop = False
        self._dismissed: list[RankProcess] = []

    def interrupt(self) -> None:
        """Ask the run to save and end; asked again, end everybody. Safe to call from a signal handler."""
        self._asked += 1

    def run(self) -> bool:
        """Keep everybody alive until the run is over."""
        try:
            for number in range(self._servers):
                self._start_server(number)
            while self._asked < 2:
                self._staff()
                outcome = self._look()
                if outcome is not None:
                    return outcome
            return False
        finally:
            self._end()

    @property
    def pids(self) -> dict[str, int]:
        """Who runs, by name."""
        found = {name: process.process for name, process in self._processes.items()}
        return {name: process.pid for name, process in found.items() if process.look() is None}

    def _look(self) -> bool | None:
        """Hear everybody once; return how the run ended, None while it goes on."""
        if self._asked and not self._told_stop:
            self._told_stop = True
            self._processes[_server(0)].process.interrupt()
        wait_for([process.output for process in self._processes.values()], LOOK_EVERY_S)
        for name, process in list(self._processes.items()):
            if self._processes.get(name) is not process:
                continue  # another has taken its place since
            for heard in process.hear():
                if isinstance(heard, RankExit):
                    outcome = self._ended(name, heard)
                    if outcome is not None:
                        return outcome
                else:
                    self._hear(name, heard.event)
        return None

    def _hear(self, name: str, event: dict[str, Any]) -> None:
        if event.get("event") in ("step", "vectors"):
            self._deaths = 0
        if name == _server(0):
            self._pass_on(event)
        elif event.get("event") == "warning":
            self._pass_on({**event, "message": f"{name}: {event['message']}"})

    def _ended(self, name: str, ending: RankExit) -> bool | None:
        """Decide what the end of a process means."""
        process = self._processes.pop(name)
        process.close()
        if ending.told is not None:
            raise error_of(ending.told)
        if name == _server(0) and ending.code in (0, INTERRUPTED):
            return ending.code == 0
        if name.startswith("worker") and ending.code in (0, INTERRUPTED):
            return None  # it left, as it was asked to
        self._replace(name, ending)
        return None

    def _replace(self, name: str, ending: RankExit) -> None:
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            raise ProcessFailed(f"{name} {cause_of(ending.code)}, and so did others", hint=ending.tail)
        if ending.code == CANNOT_FOLLOW:
            self._go_back()
            return
        self._tell("replaced", who=name, message=f"{name} {cause_of(ending.code)}")
        if name.startswith("server"):
            self._start_server(int(name.split()[1]))

    def _go_back(self) -> None:
        """Start all servers again from the last checkpoint: what one of them lost, all give up."""
        for number in range(self._servers):
            process = self._processes.pop(_server(number), None)
            if process is not None:
                process.process.kill()
                process.close()
            log_file(self._folder.path, number).unlink(missing_ok=True)
        self._tell("went_back", step=self._folder.step, message="a server has lost updates")
        for number in range(self._servers):
            self._start_server(number)

    def _staff(self) -> None:
        """Have as many workers as are wanted."""
        asked = int((wanted(self._folder.path) or {"workers": 1})["workers"])
        if self._wanted and asked != self._wanted:
            self._tell("scaled", workers=asked, before=self._wanted)
        self._wanted = asked
        for number in range(asked):
            if _worker(number) not in self._processes and not self._told_stop:
                self._start_worker(number, asked)
        for name, process in self._processes.items():
            if name.startswith("worker") and int(name.split()[1]) >= asked and process.process.look() is None:
                self._dismiss(process)

    def _dismiss(self, process: RankProcess) -> None:
        """Ask a worker once to leave after what it is at."""
        if process not in self._dismissed:
            self._dismissed.append(process)
            process.process.interrupt()

    def _start_server(self, number: int) -> None:
        self._start(_server(number), number, ["serve", str(self._folder.path), "--rank", str(number)])

    def _start_worker(self, number: int, world: int) -> None:
        """One worker alone computes as a run of one process does; several divide the cores."""
        cores = divide_cores(own_cores(), world, self._threads)[number] if world > 1 else ()
        member = RankInfo(number, max(2, world), "", cores)
        self._start(_worker(number), number, ["work", str(self._folder.path), *member.arguments])

    def _start(self, name: str, number: int, args: list[str]) -> None:
        log = self._folder.path / LOGS / f"{name.replace(' ', '-')}.log"
        self._processes[name] = RankProcess(number, name, PARAMETER_SERVER, args, log)

    def _tell(self, event: str, **facts: Any) -> None:
        body = {"event": event, "time": round(time.time(), 3), **facts}
        Journal(StoreDir(self._folder.path), JOURNAL).append(body, sync=True)
        self._pass_on(body)

    def _end(self) -> None:
        """Let workers go; nobody is left when this returns."""
        processes = [process.process for process in self._processes.values()]
        for process in processes:
            if process.look() is None:
                process.interrupt()
        until = time.monotonic() + (GRACE_S if self._asked < 2 else 0.0)
        workers = [p.process for name, p in self._processes.items() if name.startswith("worker")]
        while time.monotonic() < until and any(worker.look() is None for worker in workers):
            time.sleep(LOOK_EVERY_S)
        for heard in self._processes.values():
            heard.process.kill()
            heard.close()
        self._processes = {}


def _server(number: int) -> str:
    return f"server {number}"


def _worker(number: int) -> str:
    return f"worker {number}"
