"""Runs a worker through all stages of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from windlass.spec.run import Run
from windlass.train.event_log import EventLog
from windlass.train.server.stages import open_task_runner, stage_of
from windlass.train.server.worker import serve


def work(folder: Path, run: Run, name: str, threads: int, stopped: Callable[[], bool]) -> None:
    """Work until the run is over or `stopped` returns True."""
    record, before = EventLog(folder, rank=1), ""
    while not stopped() and (stage := stage_of(run, folder)) != before:
        runner, before = open_task_runner(stage, run, folder, record, threads), stage
        serve(folder, run.job.sync.servers, runner, name, stopped, lambda: stage_of(run, folder))
