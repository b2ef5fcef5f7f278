"""Servers and workers as threads of the test's own process: quick to start, and on real connections."""

import threading
from collections.abc import Callable
from pathlib import Path

from windlass.spec.run import Run
from windlass.train.event_log import EventLog
from windlass.train.loop import save_run
from windlass.train.server.employment import work
from windlass.train.server.rpc_server import RpcServer, open_hall
from windlass.train.server.stages import open_chief, open_hand, open_shard, stage_of, untold
from windlass.train.server.worker import serve


class Company:
    """All processes of a run on servers."""

    def __init__(self, run: Run, folder: Path) -> None:
        save_run(folder, run)
        self.run, self.folder = run, folder
        self.record = EventLog(folder, quiet=True)
        self._threads: list[threading.Thread] = []
        self._leaving: dict[str, bool] = {}
        self._halls: list[RpcServer] = []
        stage = self.stage = stage_of(run, folder)
        first = open_shard(stage, run, folder, 0, self.record.tell)
        self.chief = open_chief(run, folder, self.record, first)
        for number in range(1, run.job.sync.servers):
            shard = open_shard(stage, run, folder, number, untold)
            shard.restore()
            self._halls.append(open_hall(folder, number, "127.0.0.1", shard, run.job.sync.servers))
        self._halls.append(open_hall(folder, 0, "127.0.0.1", first, run.job.sync.servers, self.chief))

    def hire(self, name: str, *, one_stage: bool = False) -> None:
        """Let a worker begin; it stays for all stages of the run, or for this one."""
        self._leaving[name] = False

        def leaving() -> bool:
            return self._leaving[name]

        def employed() -> None:
            if one_stage:
                hand = open_hand(self.stage, self.run, self.folder, self.record, 1)
                serve(self.folder, self.run.job.sync.servers, hand, name, leaving, lambda: "another")
            else:
                work(self.folder, self.run, name, 1, leaving)

        self._threads.append(threading.Thread(target=employed, name=name, daemon=True))
        self._threads[-1].start()

    def dismiss(self, name: str) -> None:
        """Let a worker leave after its task."""
        self._leaving[name] = True

    def train(self, stopped: Callable[[], bool] = lambda: False) -> str:
        """Go on until the run is over, and let everybody go."""
        try:
            return self.chief.loop(stopped)
        finally:
            self.chief.end()
            for name in self._leaving:
                self.dismiss(name)
            for thread in self._threads:
                thread.join(20.0)
            for hall in self._halls:
                hall.close()
            self.record.close()
