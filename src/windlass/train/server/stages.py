"""The stage of a run on servers: `vectors` (word2vec), `network`, or `hidden` (hidden Markov models).

An mlp that starts from word2vec has two stages, the vectors first; any other run has one. Every process
derives the stage from the run's directory alone, so a restarted process finds the right one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.spec.run import Run
from windlass.spec.shape import HmmShape
from windlass.train.checkpoint.checkpointer import EmitEvent
from windlass.train.event_log import EventLog
from windlass.train.server.primary import PrimaryServer
from windlass.train.server.shard import ServerShard
from windlass.train.server.shard_state import ShardState
from windlass.train.server.task import ServerTask
from windlass.train.server.worker import TaskRunner, serve
from windlass.train.word2vec.start import is_due


def stage_of(run: Run, folder: Path) -> str:
    if isinstance(run.shape, HmmShape):
        return "hidden"
    return "vectors" if is_due(run, folder) else "network"


def open_shard(stage: str, run: Run, folder: Path, number: int, emit: EmitEvent) -> ServerShard:
    """Build the shard of one server for a stage."""
    part: ShardState
    match stage:
        case "hidden":
            from windlass.train.server.hmm.hmm_shard import HmmShardState

            part = HmmShardState(run, folder, number)
        case "vectors":
            from windlass.train.server.word2vec.word2vec_shard import Word2VecShardState

            part = Word2VecShardState(run, folder, number)
        case _:
            from windlass.train.server.network.network_shard import NetworkShardState

            part = NetworkShardState(run, folder, number, emit)
    return ServerShard(part, run.job.sync, folder, number)


def open_primary(run: Run, folder: Path, record: EventLog, shard: ServerShard) -> PrimaryServer:
    """Build the primary for a stage, and restore the run."""
    primary = PrimaryServer(folder, record, shard, servers=run.job.sync.servers, workers=run.layout.dp)
    primary.begin(_open_task(run, folder, record, primary))
    return primary


def _open_task(run: Run, folder: Path, record: EventLog, primary: PrimaryServer) -> ServerTask:
    match primary.shard.part.stage:
        case "hidden":
            from windlass.train.server.hmm.hmm_task import HmmTask

            return HmmTask(run, folder, record, primary)
        case "vectors":
            from windlass.train.server.word2vec.word2vec_task import Word2VecTask

            return Word2VecTask(run, folder, record, primary)
        case _:
            from windlass.train.server.network.network_task import NetworkTask

            return NetworkTask(run, folder, record, primary)


def open_task_runner(stage: str, run: Run, folder: Path, record: EventLog, threads: int) -> TaskRunner:
    """Build a worker's task runner for a stage."""
    match stage:
        case "hidden":
            from windlass.train.server.hmm.hmm_worker import HmmTaskRunner

            return HmmTaskRunner(run, threads)
        case "vectors":
            from windlass.train.server.word2vec.word2vec_worker import Word2VecTaskRunner

            return Word2VecTaskRunner(run, folder)
        case _:
            from windlass.train.server.network.network_worker import NetworkTaskRunner

            return NetworkTaskRunner(run, record, threads)


def work(folder: Path, run: Run, name: str, threads: int, stopped: Callable[[], bool]) -> None:
    """Run a worker through all stages, until the run is over or `stopped` returns True."""
    record, before = EventLog(folder, rank=1), ""
    while not stopped() and (stage := stage_of(run, folder)) != before:
        runner, before = open_task_runner(stage, run, folder, record, threads), stage
        serve(folder, run.job.sync.servers, runner, name, stopped, lambda: stage_of(run, folder))


def drop_event(*_args: Any, **_facts: Any) -> None:
    """Ignore an event: only the primary logs events."""
