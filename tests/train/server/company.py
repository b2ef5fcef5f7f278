"""Servers and workers as threads of the test's own process: quick to start, and on real connections."""

import threading
from collections.abc import Callable
from pathlib import Path

from windlass.spec.run import Run
from windlass.train.loop import save_run
from windlass.train.record import Record
from windlass.train.server.chief import Chief
from windlass.train.server.hall import Hall, open_hall
from windlass.train.server.shard import Shard
from windlass.train.server.worker import work


def untold(*_args: object, **_facts: object) -> None:
    """Only the first server tells."""


class Company:
    """All processes of a run on servers."""

    def __init__(self, run: Run, folder: Path) -> None:
        save_run(folder, run)
        self.run, self.folder = run, folder
        self.record = Record(folder, quiet=True)
        self._threads: list[threading.Thread] = []
        self._leaving: dict[str, bool] = {}
        self._halls: list[Hall] = []
        for number in range(1, run.job.sync.servers):
            shard = Shard(run, folder, number, untold)
            shard.restore()
            self._halls.append(open_hall(folder, number, "127.0.0.1", shard, run.job.sync.servers))
        shard = Shard(run, folder, 0, self.record.tell)
        self.chief = Chief(run, folder, self.record, shard)
        self.chief.begin()
        self._halls.append(open_hall(folder, 0, "127.0.0.1", shard, run.job.sync.servers, self.chief))

    def hire(self, name: str) -> None:
        """Let a worker begin."""
        self._leaving[name] = False

        def employed() -> None:
            work(self.folder, self.run, name, 1, lambda: self._leaving[name])

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
