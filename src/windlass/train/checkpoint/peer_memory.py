"""The first tier: the state of a step in memory, on two machines.

At a sync point every rank copies its shard and sends a second copy to a peer, on another machine if there is
one. When a rank is lost, its peer still has its shard. The last two sync points are kept: if a rank is lost
during the exchange, some ranks have the new state and some do not, but all have the old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.parallel.param_shard import Slice
from windlass.parallel.process_group import ProcessGroup
from windlass.spec.layout import Layout
from windlass.train.checkpoint.async_save import State
from windlass.train.checkpoint.shard import Buffers, CheckpointShard

TAG = 77
"""Tag of the messages between peers; those of pipelines have others."""
KEPT_STEPS = 2


@dataclass(frozen=True)
class MemoryShard:
    """A shard in memory, and the state of the run that it belongs to."""

    rank: int
    """Rank that it belongs to, in the layout of that step."""
    part: CheckpointShard
    state: State
    layout: Layout | None


class MemoryTier:
    """The shards that one process keeps in memory: its own and a peer's.

    Buffers are reused. A caller must read `pieces` before the next but one `keep`.
    """

    def __init__(
        self,
        group: ProcessGroup,
        nodes: Sequence[str] | None = None,
        torch_group: dist.ProcessGroup | None = None,
    ) -> None:
        self._slots = [_Slot() for _ in range(KEPT_STEPS)]
        self.regroup(group, nodes, torch_group)

    def regroup(
        self,
        group: ProcessGroup,
        nodes: Sequence[str] | None = None,
        torch_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Continue in another process group and keep the shards; `nodes` has the machine of each rank."""
        self._group, self._torch_group = group, torch_group
        to = replica_peers(nodes or [str(rank) for rank in range(group.world)])
        self._to, self._from = to[group.rank], to.index(group.rank)

    def keep(self, part: CheckpointShard, state: State, layout: Layout | None = None) -> None:
        """Copy this rank's shard and exchange it with the peers; a collective, at a sync point.

        A failed exchange leaves the newest kept sync point intact.
        """
        slot = min(self._slots, key=lambda slot: slot.step)
        slot.clear()
        own = MemoryShard(self._group.rank, part.copied(slot.own_buffers), state, layout)
        kept = [own]
        if self._group.world > 1:
            kept.append(MemoryShard(self._from, self._exchange(own.part, slot), state, layout))
        slot.kept = kept

    @property
    def steps(self) -> list[int]:
        """The steps in memory, oldest first."""
        return sorted(slot.step for slot in self._slots if slot.kept)

    @property
    def bytes(self) -> int:
        return sum(kept.part.bytes for slot in self._slots for kept in slot.kept)

    def kept(self, step: int | None = None) -> list[MemoryShard]:
        """Return the shards of a step, or of the newest: this rank's first, then the peer's."""
        found = [slot for slot in self._slots if slot.kept and step in (None, slot.step)]
        return max(found, key=lambda slot: slot.step).kept if found else []

    def pieces(self, step: int | None = None) -> Iterator[tuple[str, str | None, Slice, Tensor]]:
        """Yield (weight, kind or None, box, values) of all that is here of a step, or of the newest."""
        for kept in self.kept(step):
            yield from kept.part.pieces()

    def forget(self, step: int) -> None:
        """Drop states later than `step`: the run was rolled back."""
        for slot in self._slots:
            if slot.step > step:
                slot.clear()

    def _exchange(self, own: CheckpointShard, slot: _Slot) -> CheckpointShard:
        """Send this rank's shard and receive a peer's, tensor by tensor."""
        heads = self._group.all_gather_json({"metadata": own.metadata, "tensors": _forms(own)})
        head = heads[self._from]
        theirs = slot.room_for(head["tensors"])
        works = [
            *(dist.irecv(flat(t), self._from, self._torch_group, TAG) for t in theirs.values() if t.numel()),
            *(
                dist.isend(flat(t), self._to, self._torch_group, TAG)
                for t in own.tensors.values()
                if t.numel()
            ),
        ]
        for work in works:
            assert work is not None
            work.wait()
        return CheckpointShard(theirs, head["metadata"])


class _Slot:
    """The memory of one sync point."""

    def __init__(self) -> None:
        self.kept: list[MemoryShard] = []
        self.own_buffers = Buffers()
        self._theirs: dict[str, Tensor] = {}

    @property
    def step(self) -> int:
        """Step of the state in this slot, -1 if it is empty."""
        return self.kept[0].state.step if self.kept else -1

    def clear(self) -> None:
        """Mark the slot as empty; its buffers stay allocated."""
        self.kept = []

    def room_for(self, forms: Sequence[tuple[str, str, list[int]]]) -> dict[str, Tensor]:
        """Return tensors of these names, types and sizes; reuses buffers that fit."""
        room: dict[str, Tensor] = {}
        for name, dtype, shape in forms:
            old = self._theirs.get(name)
            fits = old is not None and list(old.shape) == shape and str(old.dtype) == dtype
            room[name] = old if old is not None and fits else torch.empty(shape, dtype=_dtype(dtype))
        self._theirs = room
        return dict(room)


def replica_peers(nodes: Sequence[str]) -> list[int]:
    """Return for each rank the peer that keeps its copy: every rank keeps one, on another machine if
    possible.

    Ranks are sorted by machine and shifted by the number of ranks of the fullest machine. That places every
    copy on another machine unless one machine has more than half of the ranks, where no rule could.
    """
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    shift = max(list(nodes).count(node) for node in nodes) if len(set(nodes)) > 1 else 1
    to = [0] * len(nodes)
    for at, rank in enumerate(order):
        to[rank] = order[(at + shift) % len(nodes)]
    return to


def flat(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes, which gloo can send whatever the type."""
    return tensor.view(-1).view(torch.uint8)


def _forms(part: CheckpointShard) -> list[tuple[str, str, list[int]]]:
    return [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in part.tensors.items()]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype
