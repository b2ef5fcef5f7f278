"""The first tier: the state of a step in memory, twice, on two machines.

At a border every rank copies its part and gives a second copy to a buddy, on another machine where there is
one. When a rank is lost, its buddy still has what only it held. The last two borders are kept: a rank that
is lost in the middle of an exchange leaves some with the new state and some without, and all have the old.
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
"""Of the messages between buddies; those of pipelines have others."""
KEPT_BORDERS = 2


@dataclass(frozen=True)
class MemoryShard:
    """A part in memory, and which state of the run it belongs to."""

    rank: int
    """Whose part it is, in the layout of that time."""
    part: CheckpointShard
    state: State
    layout: Layout | None


class MemoryTier:
    """What one process keeps of the run in memory: its own part and that of another.

    Its memory is used again from border to border. A caller reads `pieces` before the next but one `keep`.
    """

    def __init__(
        self, crew: ProcessGroup, nodes: Sequence[str] | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        self._shelves = [_Shelf() for _ in range(KEPT_BORDERS)]
        self.regroup(crew, nodes, group)

    def regroup(
        self, crew: ProcessGroup, nodes: Sequence[str] | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        """Go on in another company. What was kept is kept; `nodes` says on which machine each rank is."""
        self._crew, self._group = crew, group
        to = buddies(nodes or [str(rank) for rank in range(crew.world)])
        self._to, self._from = to[crew.rank], to.index(crew.rank)

    def keep(self, part: CheckpointShard, state: State, layout: Layout | None = None) -> None:
        """Copy this rank's part and exchange it with the buddies. All ranks do so together, at a border.

        An exchange that fails leaves the newest border that was kept as it is.
        """
        shelf = min(self._shelves, key=lambda shelf: shelf.step)
        shelf.clear()
        own = MemoryShard(self._crew.rank, part.copied(shelf.own_buffers), state, layout)
        kept = [own]
        if self._crew.world > 1:
            kept.append(MemoryShard(self._from, self._exchange(own.part, shelf), state, layout))
        shelf.kept = kept

    @property
    def steps(self) -> list[int]:
        """The steps whose state is here, oldest first."""
        return sorted(shelf.step for shelf in self._shelves if shelf.kept)

    @property
    def bytes(self) -> int:
        return sum(kept.part.bytes for shelf in self._shelves for kept in shelf.kept)

    def kept(self, step: int | None = None) -> list[MemoryShard]:
        """Return what is here of a step, or of the newest: this rank's part first, then the buddy's."""
        found = [shelf for shelf in self._shelves if shelf.kept and step in (None, shelf.step)]
        return max(found, key=lambda shelf: shelf.step).kept if found else []

    def pieces(self, step: int | None = None) -> Iterator[tuple[str, str | None, Slice, Tensor]]:
        """Yield (weight, kind or None, box, values) of all that is here of a step, or of the newest."""
        for kept in self.kept(step):
            yield from kept.part.pieces()

    def forget(self, step: int) -> None:
        """Drop what is later than `step`: the run was set back."""
        for shelf in self._shelves:
            if shelf.step > step:
                shelf.clear()

    def _exchange(self, own: CheckpointShard, shelf: _Shelf) -> CheckpointShard:
        """Send this rank's part on its way and receive the other's, tensor by tensor."""
        heads = self._crew.share({"metadata": own.metadata, "tensors": _forms(own)})
        head = heads[self._from]
        theirs = shelf.room_for(head["tensors"])
        works = [
            *(dist.irecv(flat(t), self._from, self._group, TAG) for t in theirs.values() if t.numel()),
            *(dist.isend(flat(t), self._to, self._group, TAG) for t in own.tensors.values() if t.numel()),
        ]
        for work in works:
            assert work is not None
            work.wait()
        return CheckpointShard(theirs, head["metadata"])


class _Shelf:
    """The memory of one border."""

    def __init__(self) -> None:
        self.kept: list[MemoryShard] = []
        self.own_buffers = Buffers()
        self._theirs: dict[str, Tensor] = {}

    @property
    def step(self) -> int:
        """Of the state that is here, -1 if there is none."""
        return self.kept[0].state.step if self.kept else -1

    def clear(self) -> None:
        """What is here is no longer whole; the memory stays."""
        self.kept = []

    def room_for(self, forms: Sequence[tuple[str, str, list[int]]]) -> dict[str, Tensor]:
        """Return tensors of these names, types and sizes, in memory that was used before where it fits."""
        room: dict[str, Tensor] = {}
        for name, dtype, shape in forms:
            old = self._theirs.get(name)
            fits = old is not None and list(old.shape) == shape and str(old.dtype) == dtype
            room[name] = old if old is not None and fits else torch.empty(shape, dtype=_dtype(dtype))
        self._theirs = room
        return dict(room)


def buddies(nodes: Sequence[str]) -> list[int]:
    """Return for each rank the one that keeps its copy: everybody keeps one, on another machine if possible.

    Ranks in the order of their machines, shifted by as many as the fullest machine has: no machine holds
    more than half of them, or no rule could do better for all.
    """
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    shift = max(list(nodes).count(node) for node in nodes) if len(set(nodes)) > 1 else 1
    to = [0] * len(nodes)
    for at, rank in enumerate(order):
        to[rank] = order[(at + shift) % len(nodes)]
    return to


def flat(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor as gloo can send them, whatever its type."""
    return tensor.view(-1).view(torch.uint8)


def _forms(part: CheckpointShard) -> list[tuple[str, str, list[int]]]:
    return [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in part.tensors.items()]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype
