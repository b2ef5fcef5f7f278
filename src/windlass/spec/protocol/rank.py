"""The rank of one process of a distributed run, as command-line arguments."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from windlass.spec.protocol.entrypoint import end_after_parent

ORPHAN_GRACE_S = 15.0
"""How long ranks whose launcher died may run: enough to agree, to finish a step and to save."""
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
        words = ["--rank", str(self.rank), "--world", str(self.world), "--rendezvous", self.rendezvous]
        return words + (["--cores", ",".join(map(str, self.cores))] if self.cores else [])


def add_member(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--rendezvous", default="")
    parser.add_argument("--cores", default="")


def member_of(args: argparse.Namespace) -> RankInfo:
    cores = tuple(int(core) for core in args.cores.split(",") if core)
    return RankInfo(args.rank, args.world, args.rendezvous, cores)


def apply_affinity(member: RankInfo) -> None:
    """Pin this process to its cores. Call it before torch is imported, which counts the cores once.

    A rank of a distributed run also starts a watchdog thread, which ends it some time after its launcher
    died: a rank that waits for a peer in a collective handles no signals.
    """
    if member.cores:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, member.cores)
        os.environ.update(dict.fromkeys(THREAD_COUNTS, str(len(member.cores))))
    if member.world > 1:
        end_after_parent(ORPHAN_GRACE_S)
