"""Servers and workers as threads of the test's own process: quick to start, and on real connections."""

import threading
from collections.abc import Callable
from pathlib import Path

from windlass.spec.run import Run
from windlass.train.event_log import EventLog
from windlass.train.loop import save_run
from windlass.train.server.rpc_server import RpcServer, open_rpc_server
from windlass.train.server.stages import (
    drop_event,
    open_primary,
    open_shard,
    open_task_runner,
    stage_of,
    work,
)
from windlass.train.server.worker import serve


class LocalCluster:
    """All processes of a run on servers."""

    def __init__(self, run: Run, folder: Path) -> None:
        save_run(folder, run)
        self.run, self.folder = run, folder
        self.record = EventLog(folder, quiet=True)
        self._threads: list[threading.Thread] = []
        self._leaving: dict[str, bool] = {}
        self._rpc_servers: list[RpcServer] = []
        stage = self.stage = stage_of(run, folder)
        first = open_shard(stage, run, folder, 0, self.record.emit)
        self.primary = open_primary(run, folder, self.record, first)
        for number in range(1, run.job.sync.servers):
            shard = open_shard(stage, run, folder, number, drop_event)
            shard.restore()
            self._rpc_servers.append(
                open_rpc_server(folder, number, "127.0.0.1", shard, run.job.sync.servers)
            )
        self._rpc_servers.append(
            open_rpc_server(folder, 0, "127.0.0.1", first, run.job.sync.servers, self.primary)
        )

    def start_worker(self, name: str, *, one_stage: bool = False) -> None:
        """Let a worker begin; it stays for all stages of the run, or for this one."""
        self._leaving[name] = False

        def leaving() -> bool:
            return self._leaving[name]

        def run_worker() -> None:
            if one_stage:
                runner = open_task_runner(self.stage, self.run, self.folder, self.record, 1)
                serve(self.folder, self.run.job.sync.servers, runner, name, leaving, lambda: "another")
            else:
                work(self.folder, self.run, name, 1, leaving)

        self._threads.append(threading.Thread(target=run_worker, name=name, daemon=True))
        self._threads[-1].start()

    def stop_worker(self, name: str) -> None:
        """Let a worker leave after its task."""
        self._leaving[name] = True

    def train(self, stopped: Callable[[], bool] = lambda: False) -> str:
        """Go on until the run is over, and let everybody go."""
        try:
            return self.primary.loop(stopped)
        finally:
            self.primary.end()
            for name in self._leaving:
                self.stop_worker(name)
            for thread in self._threads:
                thread.join(20.0)
            for rpc_server in self._rpc_servers:
                rpc_server.close()
            self.record.close()
