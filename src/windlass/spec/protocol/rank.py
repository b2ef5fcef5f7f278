"""Which of a run's processes one process is, as its command line says it."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from windlass.spec.protocol.entrypoint import end_after_parent

ORPHAN_GRACE_S = 15.0
"""For which members whose launcher died may go on: enough to agree, to end a step and to save."""
THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class RankInfo:
    """One of `world` processes that find each other at `rendezvous` ("host:port", where rank 0 listens)."""

    rank: int = 0
    world: int = 1
    rendezvous: str = ""
    cores: tuple[int, ...] = ()
    """The CPU cores to stay on and to compute with; empty means all of them."""

    @property
    def arguments(self) -> list[str]:
        """The command line that `member_of` reads back."""
        if self.world == 1 and not self.cores:
            return []
        told = ["--rank", str(self.rank), "--world", str(self.world), "--rendezvous", self.rendezvous]
        return told + (["--cores", ",".join(map(str, self.cores))] if self.cores else [])


def add_member(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--rendezvous", default="")
    parser.add_argument("--cores", default="")


def member_of(args: argparse.Namespace) -> RankInfo:
    cores = tuple(int(core) for core in args.cores.split(",") if core)
    return RankInfo(args.rank, args.world, args.rendezvous, cores)


def apply_affinity(member: RankInfo) -> None:
    """Take this process to its cores. To be called before torch is imported, which counts them once.

    One of several members also makes sure of its end: waiting for a peer it hears no signal, so a clock
    of its own ends it some time after its launcher.
    """
    if member.cores:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, member.cores)
        os.environ.update(dict.fromkeys(THREAD_COUNTS, str(len(member.cores))))
    if member.world > 1:
        end_after_parent(ORPHAN_GRACE_S)
