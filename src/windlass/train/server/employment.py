"""A worker from its first stage to the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from windlass.spec.run import Run
from windlass.train.event_log import EventLog
from windlass.train.server.stages import open_hand, stage_of
from windlass.train.server.worker import serve


def work(folder: Path, run: Run, name: str, threads: int, stopped: Callable[[], bool]) -> None:
    """Work for a run until it is over, or until this worker shall leave."""
    record, before = EventLog(folder, rank=1), ""
    while not stopped() and (stage := stage_of(run, folder)) != before:
        hand, before = open_hand(stage, run, folder, record, threads), stage
        serve(folder, run.job.sync.servers, hand, name, stopped, lambda: stage_of(run, folder))
