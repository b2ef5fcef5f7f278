"""Where this process sits on the grid of a layout, and whom it talks to along each axis.

Input: a layout and this process's rank. Output: coordinates and process groups. One process alone needs
no network at all: every group is None and nothing of torch.distributed is started.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import product

import psutil
import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh

from windlass.parallel.process_group import ProcessGroup
from windlass.spec.errors import ProcessFailed
from windlass.spec.layout import AXES, Layout
from windlass.spec.protocol.rank import RankInfo

MEET_S = 60.0
STUCK_S = 600.0
"""A dead neighbour is noticed at once by its closed connection; this bounds the wait for a silent one."""


class Mesh:
    """Coordinates on the axes, and a process group for every set of axes that is asked for."""

    def __init__(
        self, layout: Layout, device: torch.device, crew: ProcessGroup, ranks: Sequence[int] | None = None
    ) -> None:
        self.layout, self.device, self.crew = layout, device, crew
        self._ranks = torch.tensor(ranks or range(layout.world)).reshape(layout.degrees)
        where = (self._ranks == self.crew.rank).nonzero()[0].tolist()
        self.at: dict[str, int] = dict(zip(AXES, where, strict=True))
        self._groups: dict[tuple[str, ...], dist.ProcessGroup | None] = {}
        self._mesh: DeviceMesh | None = None

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """Return the group of those who differ from this process along `axes` only, None if it is alone.

        All processes must ask for the same groups in the same order.
        """
        if axes not in self._groups:
            self._groups[axes] = self._new_group(axes)
        return self._groups[axes]

    def ends(self) -> dist.ProcessGroup | None:
        """Return the group of the first and the last process of this pipeline, None for others.

        All processes must ask together, once.
        """
        mine: dist.ProcessGroup | None = None
        for members in self._members(("pp",)):
            group = dist.new_group([members[0], members[-1]])
            if self.crew.rank in (members[0], members[-1]):
                mine = group
        return mine

    def peer(self, **at: int) -> int:
        """Return the rank of the process elsewhere along some axes."""
        return int(self._ranks[tuple({**self.at, **at}[axis] for axis in AXES)])

    @property
    def mesh(self) -> DeviceMesh:
        """The same grid as torch knows it."""
        if self._mesh is None:
            self._mesh = DeviceMesh(self.device.type, self._ranks, mesh_dim_names=AXES)
        return self._mesh

    def _new_group(self, axes: tuple[str, ...]) -> dist.ProcessGroup | None:
        mine: dist.ProcessGroup | None = None
        for members in self._members(axes):
            if len(members) == 1:
                continue
            group = dist.new_group(members, sort_ranks=False)  # group ranks are places on the grid
            if self.crew.rank in members:
                mine = group
        return mine

    def _members(self, axes: tuple[str, ...]) -> Iterator[list[int]]:
        """Yield the ranks of every group along `axes`, in an order that all processes share."""
        fixed = [range(1) if a in axes else range(int(getattr(self.layout, a))) for a in AXES]
        for corner in product(*fixed):
            index = tuple(
                slice(None) if axis in axes else place for axis, place in zip(AXES, corner, strict=True)
            )
            yield self._ranks[index].flatten().tolist()


@contextmanager
def init_process_group(member: RankInfo, device: torch.device) -> Iterator[None]:
    """Meet the other processes of the run, and part from them at the end."""
    if member.world == 1:
        yield
        return
    with gathered(open_store(member), member, device):
        yield


def open_store(member: RankInfo) -> Store:
    """Open the place where processes leave their addresses; rank 0 keeps it."""
    host, _, port = member.rendezvous.rpartition(":")
    speak_through(host)
    with _told(member):
        return TCPStore(
            host, int(port), member.world, is_master=member.rank == 0, timeout=timedelta(seconds=MEET_S)
        )


@contextmanager
def gathered(store: Store, member: RankInfo, device: torch.device) -> Iterator[None]:
    """Form a process group through a store, and dissolve it at the end."""
    with _told(member):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=member.rank,
            world_size=member.world,
            timeout=timedelta(seconds=STUCK_S),
        )
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _told(member: RankInfo) -> Iterator[None]:
    try:
        yield
    except (dist.DistError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ProcessFailed(
            f"rank {member.rank} of {member.world} did not meet the others at {member.rendezvous}: {reason}"
        ) from None


def speak_through(host: str) -> None:
    """Let gloo use the interface that leads to the rendezvous: it would guess by the host's name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == own for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
