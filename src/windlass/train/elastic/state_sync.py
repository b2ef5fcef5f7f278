"""Brings the members of a new generation to one common state, from memory if possible.

    members exchange their steps -> those with complete gradients catch up -> slices move -> all are equal

Input: each member's trainer of the previous generation, or None. Output: trainers with the state of the
newest step of any survivor. If the survivors together do not hold all of it, all members go back to the
newest sync point in peer memory (train/checkpoint/peer_memory.py), or to a newer checkpoint; without either,
to the first step.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import torch

from windlass.parallel.param_shard import ParamShard
from windlass.parallel.process_group import ProcessGroup
from windlass.train.checkpoint.async_save import State
from windlass.train.checkpoint.shard import MOMENTS
from windlass.train.elastic.state_transfer import (
    Key,
    LocalSlice,
    Stock,
    exchange,
    listed,
    plan_moves,
    unlisted,
)
from windlass.train.machine_flops import known_peak
from windlass.train.trainer import Trainer


@dataclass(frozen=True)
class MemberState:
    """A member's state at the beginning of a generation."""

    step: int
    samples: int
    train_s: float
    ready: bool
    entries: list[list[int]]


@dataclass(frozen=True)
class Settled:
    """How a generation got its state."""

    source: str
    """memory, checkpoint or start."""
    rolled_back: int
    """Committed steps that are undone."""
    moved_bytes: int
    """Bytes received by this process."""


def exchange_states(before: Trainer | None, group: ProcessGroup) -> list[MemberState | None]:
    """All-gather the states of all members; None for a new member, and for a replica that is between
    syncs."""
    own = None
    if before is not None and (not before.sync.local or before.replicas.at_sync_point(before.step_number)):
        own = [before.step_number, before.samples, before.train_s, before.ready, before.ledger.recent()]
    return [None if one is None else MemberState(*one) for one in group.all_gather_json(own)]


def catch_up(before: Trainer | None, known: list[MemberState | None]) -> None:
    """Apply the step that other members have applied, if its gradients are complete here.

    They are: a member applies a step only after all have confirmed complete gradients. Gradients of any other
    step are dropped.
    """
    if before is None:
        return
    newest = max((one.step for one in known if one is not None), default=0)
    if before.ready and before.step_number == newest - 1:
        before.update()
        before.commit(_entries(known)[newest][4])
    before.ready = False
    before.strategy.params.clear()


def behind(before: Trainer | None, known: list[MemberState | None]) -> bool:
    """Return True if other members are ahead; then this member's state will be overwritten."""
    newest = max((one.step for one in known if one is not None), default=0)
    return before is not None and before.step_number < newest


def settle(trainer: Trainer, before: Trainer | None, known: list[MemberState | None]) -> Settled:
    """Bring all members to one state, and continue the ledger."""
    last = trainer.record.last("ledger", "resumed")
    written = int(last["steps"][1] if last.get("event") == "ledger" else last.get("step", 0))
    reached = max([written, *(one.step for one in known if one is not None)])
    moved = _from_survivors(trainer, before, known)
    if moved is None:
        moved = _from_peer_memory(trainer)
    if moved is None:
        _from_checkpoint(trainer)
    if trainer.memory is not None:
        trainer.memory.forget(trainer.step_number)
    already_emitted = moved is None and trainer.step_number > 0  # by Trainer.restore
    if written > trainer.step_number and not already_emitted:
        trainer.emit_resumed("checkpoint" if moved is None else "memory")
    entries = _entries(known).values()
    written = min(written, trainer.step_number)
    trainer.ledger.succeed(trainer.generation, entries, written=written, step=trainer.step_number)
    source = "memory" if moved is not None else "checkpoint" if trainer.step_number else "start"
    return Settled(source, reached - trainer.step_number, moved or 0)


def _from_survivors(trainer: Trainer, before: Trainer | None, known: list[MemberState | None]) -> int | None:
    """Take the newest survivors' state; return the bytes received, None if they do not hold all of it."""
    survivors = [one for one in known if one is not None]
    if not survivors:
        return None
    newest = max(survivors, key=lambda one: one.step)
    up_to_date = before is not None and before.step_number == newest.step
    stock = stock_of(before) if before is not None and up_to_date else {}
    return _moved(trainer, stock, State(newest.step, newest.samples, newest.train_s))


def _from_peer_memory(trainer: Trainer) -> int | None:
    """Go back to the newest sync point that the members hold completely, including copies for lost peers.

    One older than the newest checkpoint is not used: it would undo more steps.
    """
    saved = max(trainer.grid.world_group.all_gather_json(trainer.checkpoints.newest_step))
    group, memory = trainer.grid.world_group, trainer.memory
    states = {step: asdict(memory.kept(step)[0].state) for step in memory.steps} if memory else {}
    known = {step: state for shared in group.all_gather_json(list(states.items())) for step, state in shared}
    for step in sorted((step for step in known if step > saved), reverse=True):
        stock: dict[Key, list[LocalSlice]] = {}
        for name, kind, box, tensor in memory.pieces(step) if memory and step in memory.steps else ():
            stock.setdefault((name, kind or ""), []).append(LocalSlice(box, tensor))
        moved = _moved(trainer, stock, State(**known[step]))
        if moved is not None:
            return moved
    return None


def _moved(trainer: Trainer, stock: Stock, state: State) -> int | None:
    """Move the state of a step to where it is needed; return the bytes received, None if a part is
    missing."""
    group, room = trainer.grid.world_group, _room(trainer, state.step)
    listings = group.all_gather_json([listed(stock), listed(room)])
    moves, missing = plan_moves(
        [unlisted(one) for one, _ in listings], [unlisted(two) for _, two in listings]
    )
    if missing:
        return None
    with torch.no_grad():
        moved = exchange(group, moves, stock, room)
    trainer.set_state(state)
    _adopt(trainer, room)
    return moved


def _adopt(trainer: Trainer, room: Stock) -> None:
    """Load the received state into the optimizer and the sync state."""
    step = trainer.step_number
    for holding in _filled(trainer):
        moments = {ours: room.get((holding.name, kind)) for kind, ours in MOMENTS.items()}
        found = {ours: pieces[0].tensor for ours, pieces in moments.items() if pieces}
        trainer.optimizer.state[holding.tensor] = (
            {"step": torch.tensor(float(step)), **found} if found else {}
        )
    trainer.strategy.params.sync_tied()
    trainer.replicas.load_state({}, step)


def _from_checkpoint(trainer: Trainer) -> None:
    trainer.optimizer.state.clear()
    trainer.set_state(State(0, 0, 0.0))
    trainer.strategy.init_weights()
    trainer.restore()


def stock_of(trainer: Trainer) -> dict[Key, list[LocalSlice]]:
    """Return the slices of the run's state that a trainer holds."""
    stock: dict[Key, list[LocalSlice]] = {}
    for holding in _filled(trainer):
        state = trainer.optimizer.state.get(holding.tensor, {})
        stock[holding.name, ""] = [LocalSlice(holding.box, holding.tensor)]
        for kind, theirs in MOMENTS.items():
            if theirs in state:
                stock[holding.name, kind] = [LocalSlice(holding.box, state[theirs])]
    return stock


def _room(trainer: Trainer, step: int) -> dict[Key, list[LocalSlice]]:
    """Return the tensors that receive the state of a step; moments exist from the first step on."""
    room = stock_of(trainer)
    for holding in _filled(trainer) if step else ():
        for kind in MOMENTS:
            if (holding.name, kind) not in room:
                room[holding.name, kind] = [
                    LocalSlice(holding.box, torch.zeros_like(holding.tensor.detach()))
                ]
    return room


def _filled(trainer: Trainer) -> list[ParamShard]:
    return [holding for holding in trainer.strategy.params.holdings if holding.tensor.numel()]


def _entries(known: list[MemberState | None]) -> dict[int, list[int]]:
    """Return the ledger entry of each step that any survivor remembers."""
    return {entry[1]: entry for one in known if one is not None for entry in one.entries}


def emit_settled(trainer: Trainer, settled: Settled, began_s: float) -> None:
    """Log that the generation has settled, with the machine's peak as first measured."""
    if trainer.grid.world_group.rank == 0:
        trainer.peak = trainer.record.last("settled").get("peak_flops") or known_peak(trainer.device)
    trainer.record.emit(
        "settled",
        generation=trainer.generation,
        step=trainer.step_number,
        samples=trainer.samples,
        source=settled.source,
        seconds=round(time.monotonic() - began_s, 3),
        moved_bytes=settled.moved_bytes,
        rolled_back=settled.rolled_back,
        peak_flops=trainer.peak,
    )
