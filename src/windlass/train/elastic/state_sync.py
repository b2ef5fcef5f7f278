"""Brings the members of a new generation to one common state, from memory where that is possible.

    everybody tells how far it is -> those with complete gradients catch up -> boxes move -> all are equal

Input: what each member brings from the generation before, or nothing. Output: trainers that hold the state of
the newest step that any survivor has. Where the survivors together do not hold all of it, all go back to the
newest border that they kept twice in memory (train/checkpoint/peer_memory.py), or to a checkpoint that is
newer; where there is neither, to the first step.
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
    """What a member says of itself at the beginning of a generation."""

    step: int
    samples: int
    train_s: float
    ready: bool
    entries: list[list[int]]


@dataclass(frozen=True)
class Settled:
    """How a generation came to its state."""

    source: str
    """memory, checkpoint or start."""
    rolled_back: int
    """Steps that were committed and are undone."""
    moved_bytes: int
    """That this process received."""


def tell(before: Trainer | None, crew: ProcessGroup) -> list[MemberState | None]:
    """Hear how far everybody is; None for newcomers, and for who walked apart from its replicas."""
    own = None
    if before is not None and (not before.sync.local or before.replicas.at_border(before.step_number)):
        own = [before.step_number, before.samples, before.train_s, before.ready, before.ledger.recent()]
    return [None if one is None else MemberState(*one) for one in crew.share(own)]


def catch_up(before: Trainer | None, known: list[MemberState | None]) -> None:
    """Do the step that others did already and whose gradients are complete here too.

    Whoever did it had heard from all that theirs were. Gradients of any other step are dropped.
    """
    if before is None:
        return
    newest = max((one.step for one in known if one is not None), default=0)
    if before.ready and before.step_number == newest - 1:
        before.advance(_entries(known)[newest][4])
    before.ready = False
    before.strategy.held.clear()


def behind(before: Trainer | None, known: list[MemberState | None]) -> bool:
    """Whether others are further: then what is held here will be written over, and counts no more."""
    newest = max((one.step for one in known if one is not None), default=0)
    return before is not None and before.step_number < newest


def settle(trainer: Trainer, before: Trainer | None, known: list[MemberState | None]) -> Settled:
    """Give all members one state, and the ledger its continuation."""
    last = trainer.record.last("ledger", "resumed")
    written = int(last["steps"][1] if last.get("event") == "ledger" else last.get("step", 0))
    reached = max([written, *(one.step for one in known if one is not None)])
    moved = _from_survivors(trainer, before, known)
    if moved is None:
        moved = _from_kept_borders(trainer)
    if moved is None:
        _from_checkpoint(trainer)
    if trainer.memory is not None:
        trainer.memory.forget(trainer.step_number)
    told = moved is None and trainer.step_number > 0  # by whoever restored the checkpoint
    if written > trainer.step_number and not told:
        trainer.tell_resumed("checkpoint" if moved is None else "memory")
    entries = _entries(known).values()
    written = min(written, trainer.step_number)
    trainer.ledger.succeed(trainer.generation, entries, written=written, step=trainer.step_number)
    source = "memory" if moved is not None else "checkpoint" if trainer.step_number else "start"
    return Settled(source, reached - trainer.step_number, moved or 0)


def _from_survivors(trainer: Trainer, before: Trainer | None, known: list[MemberState | None]) -> int | None:
    """Take the newest survivors' state; return the bytes received, None where they do not hold all of it."""
    survivors = [one for one in known if one is not None]
    if not survivors:
        return None
    newest = max(survivors, key=lambda one: one.step)
    up_to_date = before is not None and before.step_number == newest.step
    stock = stock_of(before) if before is not None and up_to_date else {}
    return _moved(trainer, stock, State(newest.step, newest.samples, newest.train_s))


def _from_kept_borders(trainer: Trainer) -> int | None:
    """Go back to the newest border that members, with what they keep for lost buddies, hold all of.

    A border before the newest checkpoint, from other company perhaps, would undo more steps than that does.
    """
    saved = max(trainer.grid.crew.share(trainer.checkpoints.newest_step))
    crew, memory = trainer.grid.crew, trainer.memory
    states = {step: asdict(memory.kept(step)[0].state) for step in memory.steps} if memory else {}
    known = {step: state for told in crew.share(list(states.items())) for step, state in told}
    for step in sorted((step for step in known if step > saved), reverse=True):
        stock: dict[Key, list[LocalSlice]] = {}
        for name, kind, box, tensor in memory.pieces(step) if memory and step in memory.steps else ():
            stock.setdefault((name, kind or ""), []).append(LocalSlice(box, tensor))
        moved = _moved(trainer, stock, State(**known[step]))
        if moved is not None:
            return moved
    return None


def _moved(trainer: Trainer, stock: Stock, state: State) -> int | None:
    """Move the state of a step to where it is needed; return the bytes received, None if some is nowhere."""
    crew, room = trainer.grid.crew, _room(trainer, state.step)
    told = crew.share([listed(stock), listed(room)])
    moves, missing = plan_moves([unlisted(one) for one, _ in told], [unlisted(two) for _, two in told])
    if missing:
        return None
    with torch.no_grad():
        moved = exchange(crew, moves, stock, room)
    trainer.stand_at(state)
    _adopt(trainer, room)
    return moved


def _adopt(trainer: Trainer, room: Stock) -> None:
    """Let the optimizer and the exchange go on from what arrived."""
    step = trainer.step_number
    for holding in _filled(trainer):
        moments = {ours: room.get((holding.name, kind)) for kind, ours in MOMENTS.items()}
        found = {ours: pieces[0].tensor for ours, pieces in moments.items() if pieces}
        trainer.optimizer.state[holding.tensor] = (
            {"step": torch.tensor(float(step)), **found} if found else {}
        )
    trainer.strategy.held.follow()
    trainer.replicas.load_state({}, step)


def _from_checkpoint(trainer: Trainer) -> None:
    trainer.optimizer.state.clear()
    trainer.stand_at(State(0, 0, 0.0))
    trainer.strategy.fill()
    trainer.restore()


def stock_of(trainer: Trainer) -> dict[Key, list[LocalSlice]]:
    """Return all that a trainer holds of the run's state."""
    stock: dict[Key, list[LocalSlice]] = {}
    for holding in _filled(trainer):
        state = trainer.optimizer.state.get(holding.tensor, {})
        stock[holding.name, ""] = [LocalSlice(holding.box, holding.tensor)]
        for kind, theirs in MOMENTS.items():
            if theirs in state:
                stock[holding.name, kind] = [LocalSlice(holding.box, state[theirs])]
    return stock


def _room(trainer: Trainer, step: int) -> dict[Key, list[LocalSlice]]:
    """Return where the state of a step goes; moments exist from the first step on."""
    room = stock_of(trainer)
    for holding in _filled(trainer) if step else ():
        for kind in MOMENTS:
            if (holding.name, kind) not in room:
                room[holding.name, kind] = [
                    LocalSlice(holding.box, torch.zeros_like(holding.tensor.detach()))
                ]
    return room


def _filled(trainer: Trainer) -> list[ParamShard]:
    return [holding for holding in trainer.strategy.held.holdings if holding.tensor.numel()]


def _entries(known: list[MemberState | None]) -> dict[int, list[int]]:
    """Return what any survivor remembers of each step."""
    return {entry[1]: entry for one in known if one is not None for entry in one.entries}


def tell_settled(trainer: Trainer, settled: Settled, began_s: float) -> None:
    """Write down that the members work together, and what the first of them ever measured of the machine."""
    if trainer.grid.crew.rank == 0:
        trainer.peak = trainer.record.last("settled").get("peak_flops") or known_peak(trainer.device)
    trainer.record.tell(
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
