"""This process's coordinates on the mesh of a layout, and its process group along each axis.

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
    """Coordinates on the axes; process groups are created on demand, one per set of axes."""

    def __init__(
        self,
        layout: Layout,
        device: torch.device,
        world_group: ProcessGroup,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.layout, self.device, self.world_group = layout, device, world_group
        self._ranks = torch.tensor(ranks or range(layout.world)).reshape(layout.degrees)
        where = (self._ranks == self.world_group.rank).nonzero()[0].tolist()
        self.at: dict[str, int] = dict(zip(AXES, where, strict=True))
        self._groups: dict[tuple[str, ...], dist.ProcessGroup | None] = {}
        self._mesh: DeviceMesh | None = None

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """Return the group of ranks that differ from this one along `axes` only; None if it has no others.

        All processes must request the same groups in the same order.
        """
        if axes not in self._groups:
            self._groups[axes] = self._new_group(axes)
        return self._groups[axes]

    def ends(self) -> dist.ProcessGroup | None:
        """Return the group of the first and the last process of this pipeline, None for others.

        All processes must call this together, once.
        """
        mine: dist.ProcessGroup | None = None
        for members in self._members(("pp",)):
            group = dist.new_group([members[0], members[-1]])
            if self.world_group.rank in (members[0], members[-1]):
                mine = group
        return mine

    def peer(self, **at: int) -> int:
        """Return the rank at other coordinates along some axes."""
        return int(self._ranks[tuple({**self.at, **at}[axis] for axis in AXES)])

    @property
    def mesh(self) -> DeviceMesh:
        """The same grid as a torch DeviceMesh."""
        if self._mesh is None:
            self._mesh = DeviceMesh(self.device.type, self._ranks, mesh_dim_names=AXES)
        return self._mesh

    def _new_group(self, axes: tuple[str, ...]) -> dist.ProcessGroup | None:
        mine: dist.ProcessGroup | None = None
        for members in self._members(axes):
            if len(members) == 1:
                continue
            group = dist.new_group(members, sort_ranks=False)  # group ranks are places on the grid
            if self.world_group.rank in members:
                mine = group
        return mine

    def _members(self, axes: tuple[str, ...]) -> Iterator[list[int]]:
        """Yield the ranks of every group along `axes`, in the same order on all processes."""
        fixed = [range(1) if a in axes else range(int(getattr(self.layout, a))) for a in AXES]
        for corner in product(*fixed):
            index = tuple(
                slice(None) if axis in axes else place for axis, place in zip(AXES, corner, strict=True)
            )
            yield self._ranks[index].flatten().tolist()


@contextmanager
def init_process_group(member: RankInfo, device: torch.device) -> Iterator[None]:
    """Join the process group of the run; leave it at the end."""
    if member.world == 1:
        yield
        return
    with gathered(open_store(member), member, device):
        yield


def open_store(member: RankInfo) -> Store:
    """Open the rendezvous store, where ranks publish their addresses; rank 0 hosts it."""
    host, _, port = member.rendezvous.rpartition(":")
    speak_through(host)
    with _rendezvous_errors(member):
        return TCPStore(
            host, int(port), member.world, is_master=member.rank == 0, timeout=timedelta(seconds=MEET_S)
        )


@contextmanager
def gathered(store: Store, member: RankInfo, device: torch.device) -> Iterator[None]:
    """Form a process group through a store; destroy it at the end."""
    with _rendezvous_errors(member):
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
def _rendezvous_errors(member: RankInfo) -> Iterator[None]:
    try:
        yield
    except (dist.DistError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ProcessFailed(
            f"rank {member.rank} of {member.world} did not meet the others at {member.rendezvous}: {reason}"
        ) from None


def speak_through(host: str) -> None:
    """Make gloo use the interface that routes to the rendezvous; by default it guesses from the host name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == own for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
