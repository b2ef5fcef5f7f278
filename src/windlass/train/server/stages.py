"""Which of the things that servers can hold a run is at: vectors of tokens, a network, or hidden states.

An mlp that starts from word2vec has two stages, the vectors first; any other run has one. Everybody finds out
from the run's directory alone, so whoever is started anew comes to the right one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.spec.run import Run
from windlass.spec.shape import HmmShape
from windlass.train.checkpoint.manager import Tell
from windlass.train.event_log import EventLog
from windlass.train.server.primary import PrimaryServer
from windlass.train.server.shard import ServerShard
from windlass.train.server.shard_state import ShardState
from windlass.train.server.task import ServerTask
from windlass.train.server.worker import Hand
from windlass.train.word2vec.start import is_due


def stage_of(run: Run, folder: Path) -> str:
    if isinstance(run.shape, HmmShape):
        return "hidden"
    return "vectors" if is_due(run, folder) else "network"


def open_shard(stage: str, run: Run, folder: Path, number: int, tell: Tell) -> ServerShard:
    """Build what one server holds at a stage."""
    part: ShardState
    match stage:
        case "hidden":
            from windlass.train.server.hmm.hmm_shard import HiddenPart

            part = HiddenPart(run, folder, number)
        case "vectors":
            from windlass.train.server.word2vec.word2vec_shard import VectorPart

            part = VectorPart(run, folder, number)
        case _:
            from windlass.train.server.network.network_shard import NetworkPart

            part = NetworkPart(run, folder, number, tell)
    return ServerShard(part, run.job.sync, folder, number)


def open_chief(run: Run, folder: Path, record: EventLog, shard: ServerShard) -> PrimaryServer:
    """Build the first server's side of a stage, and take up the run where it stands."""
    chief = PrimaryServer(folder, record, shard, servers=run.job.sync.servers, workers=run.layout.dp)
    chief.begin(_course(run, folder, record, chief))
    return chief


def _course(run: Run, folder: Path, record: EventLog, chief: PrimaryServer) -> ServerTask:
    match chief.shard.part.stage:
        case "hidden":
            from windlass.train.server.hmm.hmm_task import HiddenCourse

            return HiddenCourse(run, folder, record, chief)
        case "vectors":
            from windlass.train.server.word2vec.word2vec_task import VectorCourse

            return VectorCourse(run, folder, record, chief)
        case _:
            from windlass.train.server.network.network_task import NetworkCourse

            return NetworkCourse(run, folder, record, chief)


def open_hand(stage: str, run: Run, folder: Path, record: EventLog, threads: int) -> Hand:
    """Build what a worker computes with at a stage."""
    match stage:
        case "hidden":
            from windlass.train.server.hmm.hmm_worker import HiddenHand

            return HiddenHand(run, threads)
        case "vectors":
            from windlass.train.server.word2vec.word2vec_worker import VectorHand

            return VectorHand(run, folder)
        case _:
            from windlass.train.server.network.network_worker import NetworkHand

            return NetworkHand(run, record, threads)


def untold(*_args: Any, **_facts: Any) -> None:
    """Only the first server tells."""
