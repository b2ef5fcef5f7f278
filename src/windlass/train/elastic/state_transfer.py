"""Transfers state between the memories of processes, over the network.

Input: what every process has and what it needs, as slices of named tensors. Output: the needed slices. The
plan is a pure function of these lists, which every process knows, so all compute the same plan. It is used
for new members, for survivors that are a step behind, and for all members when the layout changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.parallel.param_shard import Slice
from windlass.parallel.process_group import ProcessGroup
from windlass.train.checkpoint.reader import cover

Key = tuple[str, str]
"""(parameter, kind); kind is "" for the weight, else e.g. "first" for Adam's first moment."""


@dataclass(frozen=True)
class HeldSlice:
    """A slice of a tensor that a process has."""

    rank: int
    box: Slice


@dataclass(frozen=True)
class SliceTransfer:
    """A slice to send from one rank to another."""

    source: int
    target: int
    key: Key
    box: Slice


@dataclass(frozen=True)
class LocalSlice:
    """A slice of a tensor in this process's memory."""

    box: Slice
    tensor: Tensor


Stock = Mapping[Key, Sequence[LocalSlice]]
"""The slices that a process has, or has room for."""

Listed = dict[Key, list[Slice]]


def plan_moves(
    have: Sequence[Listed], need: Sequence[Listed]
) -> tuple[list[SliceTransfer], list[tuple[int, Key, Slice]]]:
    """Return the transfers, and the needed slices that no process has.

    A process uses its own slices first; otherwise the process that has sent least so far sends.
    """
    moves: list[SliceTransfer] = []
    missing: list[tuple[int, Key, Slice]] = []
    loads = [0] * len(have)
    for target, wanted in enumerate(need):
        for key in sorted(wanted):
            for box in wanted[key]:
                pieces, left = cover(box, _holders(have, key, target, loads))
                missing += [(target, key, one) for one in left]
                for holder, piece in pieces:
                    loads[holder.rank] += prod(piece.shape) if holder.rank != target else 0
                    moves.append(SliceTransfer(holder.rank, target, key, piece))
    return moves, missing


def _holders(have: Sequence[Listed], key: Key, target: int, loads: Sequence[int]) -> list[HeldSlice]:
    order = sorted(range(len(have)), key=lambda rank: (rank != target, loads[rank], rank))
    return [HeldSlice(rank, box) for rank in order for box in have[rank].get(key, ())]


def exchange(group: ProcessGroup, moves: Sequence[SliceTransfer], stock: Stock, room: Stock) -> int:
    """Carry out a plan, on all ranks; return the bytes that this process received.

    Transfers between two processes follow the order of the plan, so they need no tags.
    """
    sent: list[tuple[dist.Work, Tensor]] = []
    received: list[tuple[dist.Work, Tensor, Tensor]] = []
    moved = 0
    for move in moves:
        if move.target == group.rank:
            target = _part(room[move.key], move.box)
            if move.source == group.rank:
                _copy(_part(stock[move.key], move.box), target)
                continue
            direct = target.is_contiguous() and target.device.type == "cpu"
            landing = target if direct else torch.empty(target.shape, dtype=target.dtype)
            received.append((_work(dist.irecv(landing, move.source)), landing, target))
            moved += landing.nbytes
        elif move.source == group.rank:
            piece = _part(stock[move.key], move.box).detach().cpu().contiguous()
            sent.append((_work(dist.isend(piece, move.target)), piece))
    for work, landing, target in received:
        work.wait()
        _copy(landing, target)
    for work, _ in sent:
        work.wait()
    return moved


def _part(pieces: Sequence[LocalSlice], box: Slice) -> Tensor:
    """Return a view of the local slice that holds a box."""
    for piece in pieces:
        common = piece.box.overlap(box)
        if common is not None and common.shape == box.shape:
            return piece.tensor.detach()[box.within(piece.box)]
    raise AssertionError(f"no local slice holds {box}")


def _copy(source: Tensor, target: Tensor) -> None:
    if source.data_ptr() != target.data_ptr():
        target.copy_(source)


def _work(work: Any) -> dist.Work:
    assert work is not None
    found: dist.Work = work
    return found


def listed(stock: Stock) -> list[list[Any]]:
    """Return the slices of a stock as JSON."""
    return [[*key, [piece.box.spans for piece in pieces]] for key, pieces in stock.items()]


def unlisted(listing: Sequence[Sequence[Any]]) -> Listed:
    """Read what `listed` listing."""
    return {
        (name, kind): [Slice(tuple((int(a), int(b)) for a, b in spans)) for spans in boxes]
        for name, kind, boxes in listing
    }
