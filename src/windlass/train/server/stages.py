"""Which of the things that servers can hold a run is at: vectors of tokens, a network, or hidden states.

An mlp that starts from word2vec has two stages, the vectors first; any other run has one. Everybody finds out
from the run's directory alone, so whoever is started anew comes to the right one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.spec.run import Run
from windlass.spec.shape import HmmShape
from windlass.train.record import Record
from windlass.train.server.chief import Chief
from windlass.train.server.course import Course
from windlass.train.server.part import Part
from windlass.train.server.shard import Shard
from windlass.train.server.worker import Hand
from windlass.train.tiers import Tell
from windlass.train.word2vec.start import is_due


def stage_of(run: Run, folder: Path) -> str:
    if isinstance(run.shape, HmmShape):
        return "hidden"
    return "vectors" if is_due(run, folder) else "network"


def open_shard(stage: str, run: Run, folder: Path, number: int, tell: Tell) -> Shard:
    """Build what one server holds at a stage."""
    part: Part
    match stage:
        case "hidden":
            from windlass.train.server.hidden.part import HiddenPart

            part = HiddenPart(run, folder, number)
        case "vectors":
            from windlass.train.server.vectors.part import VectorPart

            part = VectorPart(run, folder, number)
        case _:
            from windlass.train.server.network.part import NetworkPart

            part = NetworkPart(run, folder, number, tell)
    return Shard(part, run.job.sync, folder, number)


def open_chief(run: Run, folder: Path, record: Record, shard: Shard) -> Chief:
    """Build the first server's side of a stage, and take up the run where it stands."""
    chief = Chief(folder, record, shard, servers=run.job.sync.servers, workers=run.layout.dp)
    chief.begin(_course(run, folder, record, chief))
    return chief


def _course(run: Run, folder: Path, record: Record, chief: Chief) -> Course:
    match chief.shard.part.stage:
        case "hidden":
            from windlass.train.server.hidden.course import HiddenCourse

            return HiddenCourse(run, folder, record, chief)
        case "vectors":
            from windlass.train.server.vectors.course import VectorCourse

            return VectorCourse(run, folder, record, chief)
        case _:
            from windlass.train.server.network.course import NetworkCourse

            return NetworkCourse(run, folder, record, chief)


def open_hand(stage: str, run: Run, folder: Path, record: Record, threads: int) -> Hand:
    """Build what a worker computes with at a stage."""
    match stage:
        case "hidden":
            from windlass.train.server.hidden.worker import HiddenHand

            return HiddenHand(run, threads)
        case "vectors":
            from windlass.train.server.vectors.worker import VectorHand

            return VectorHand(run, folder)
        case _:
            from windlass.train.server.network.worker import NetworkHand

            return NetworkHand(run, record, threads)


def untold(*_args: Any, **_facts: Any) -> None:
    """Only the first server tells."""
