"""Decides who belongs to an elastic run: who is lost, when a generation ends, who forms the next one.

    find_losses -> decide -> staff      each a pure function of the roll and the time

A process that ended and a connection that closed speak for themselves. Silence counts by the worker's own
habit of beating, so a busy machine is not taken for a dead one. Who beats but gets nowhere is caught by the
pace of the steps before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from windlass.elastic.membership_state import MembershipState, WorkerState, listed
from windlass.spec.layout import Layout

SILENT_S, MAX_SILENT_S, SILENT_GAPS = 1.5, 5.0, 8.0
"""Silence that counts as loss: so many of the widest recent gaps between beats, within these bounds."""
QUIET_S = 0.8
"""Several beats that were missed."""
EXPECTED_S = 3.0
"""For members that an earlier coordinator left, to say hello."""
NURSERY_S, START_S = 300.0, 60.0
"""From the asking for a worker to its start, for which a nursery may have to load; from there to its first
word."""
COME_S, COME_STEPS = 3.0, 4.0
"""For survivors to reach the lobby after a loss, and the same in steps, where these are long."""
FORMING_S = 15.0
STUCK_S, STUCK_STEPS = 10.0, 20.0
"""Without a step while all members say that they are in one."""
FIRST_STEP_S = 300.0
"""The same before any step was seen: it may compile."""
ASIDE_S = 600.0
"""Without news in a phase beside steps: saving, evaluating."""
TOGETHER_S = 0.3
"""For newcomers, to be taken in with others that come at the same time."""
STARTING_S = 1.0
"""The same for those that are being started: training goes on meanwhile."""
FIRST_S = 20.0
"""For machines and workers that are being started, before a generation forms without them."""
DONE_S = 5.0
"""For the other members to end, once rank 0 has."""
EARLY_S, MAX_EARLY = 5.0, 5
BACK_OFF_S, MAX_BACK_OFF_S = 0.5, 30.0
MAX_FRUITLESS = 20


@dataclass(frozen=True)
class LostWorker:
    """A worker to be counted as lost."""

    worker: str
    how: str
    """exit, connection, silent or stuck."""
    detail: str
    silent_s: float


@dataclass(frozen=True)
class AbandonGeneration:
    """The generation cannot go on: call its members at once."""

    reason: str


@dataclass(frozen=True)
class DrainGeneration:
    """Call the members of the generation to the lobby after their step."""

    reason: str
    stop: bool = False
    departs: bool = False
    """Whether some of them will not be in the next generation."""


@dataclass(frozen=True)
class Form:
    """Form the next generation of the first workers in the lobby."""

    reason: str


@dataclass(frozen=True)
class Drained:
    """All that are left of the generation are in the lobby."""


@dataclass(frozen=True)
class End:
    """The run is over."""

    outcome: str
    error: dict[str, Any] | None = None


Move = AbandonGeneration | DrainGeneration | Form | Drained | End


@dataclass(frozen=True)
class StartWorker:
    """Start a worker on a node."""

    node: str


@dataclass(frozen=True)
class StopWorker:
    """Dismiss a worker that waits."""

    worker: str
    reason: str


def find_losses(roll: MembershipState, now_s: float) -> list[LostWorker]:
    """Return who is lost. Members that end as they should are not."""
    found = {loss.worker: loss for worker in roll.alive if (loss := _loss_of(roll, worker, now_s))}
    for loss in (*_laggards(roll, now_s), *_deserters(roll, now_s)):
        found.setdefault(loss.worker, loss)
    return list(found.values())


def cut_off(roll: MembershipState, losses: list[LostWorker], now_s: float) -> bool:
    """Whether the coordinator itself is lost: most members fell silent together, on other machines.

    They do not fall silent at the very same moment, so once one counts as lost, those count with it that
    have missed several beats.
    """
    if not any(loss.how == "silent" for loss in losses):
        return False
    quiet = [w for w in roll.crew if w.connected and now_s - w.heard_s > QUIET_S]
    return 2 * sum(w.node != roll.home for w in quiet) > len(roll.members)


def decide(roll: MembershipState, now_s: float, used: Callable[[int], int]) -> Move | None:
    """Return what to do next; `used(n)` says how many of n workers a layout can use."""
    if roll.early >= MAX_EARLY:
        return End("failed", _failed(f"{roll.early} workers in a row died soon after their start", roll))
    if roll.fruitless >= MAX_FRUITLESS:
        return End("failed", _failed(f"{roll.fruitless} generations in a row ended before a step", roll))
    if (end := _decide_end(roll, now_s)) is not None or _finished(roll):
        return end
    if roll.stage == "running":
        return _decide_running(roll, now_s, used)
    if roll.stage == "gathering":
        return _decide_gathering(roll, now_s)
    return _decide_idle(roll, now_s, used)


def staff(roll: MembershipState, now_s: float) -> list[StartWorker | StopWorker]:
    """Keep as many processes as are wanted, spares included; the least loaded machines start them."""
    if roll.stop or roll.awaited or any(w.outcome is not None for w in roll.crew):
        return []
    slow = [w for w in roll.alive if w.slow and w.ready]
    if slow:
        return [StopWorker(w.worker, "it is far slower than the others") for w in slow]
    alive, total = roll.alive, roll.wanted + roll.spares
    if len(alive) < total and now_s >= roll.start_after_s:
        return _hire(roll, total - len(alive))
    idle = [w for w in reversed(roll.newcomers) if w.rank is None]
    surplus = len(alive) - total if len(roll.members) <= roll.wanted or roll.stage == "idle" else 0
    return [
        StopWorker(w.worker, f"the run goes on with {roll.wanted} workers") for w in idle[: max(0, surplus)]
    ]


def comparable(roll: MembershipState) -> bool:
    """Whether the paces of members say something: each has a share of the batch, and all are in steps."""
    layout, crew = roll.layout, roll.crew
    own_shares = all(layout.get(axis, 1) == 1 for axis in ("pp", "cp", "tp"))
    steady = roll.stage == "running" and roll.progressed and not roll.stop
    return own_shares and steady and all(w.connected and not w.over and w.phase == "step" for w in crew)


def shares_for(roll: MembershipState, layout: Layout, members: list[str]) -> tuple[int, ...] | None:
    """Return the shares of the next generation: as measured if it has these members, else the layout's."""
    wanted = roll.next_shares
    if wanted is None or wanted.keys() != set(members) or layout.replicas != len(members):
        return layout.shares
    return tuple(wanted[member] for member in members)


def back_off_s(early: int) -> float:
    """Return the pause before the next start, after so many early deaths in a row."""
    return float(min(MAX_BACK_OFF_S, BACK_OFF_S * 2 ** (early - 1))) if early > 0 else 0.0


def silence_s(worker: WorkerState) -> float:
    """Return how long a worker may be silent: as it is used to, within bounds."""
    return min(MAX_SILENT_S, max(SILENT_S, SILENT_GAPS * worker.gap_s))


def _loss_of(roll: MembershipState, worker: WorkerState, now_s: float) -> LostWorker | None:
    silent_s = now_s - worker.heard_s
    if worker.exit is not None:
        return LostWorker(worker.worker, "exit", worker.exit, silent_s)
    if worker.cut:
        return LostWorker(worker.worker, "connection", "its connection was closed", silent_s)
    if worker.connected:
        allowed_s, what = silence_s(worker), f"no word for {silent_s:.1f} s"
    elif worker.expected:
        allowed_s, what = EXPECTED_S, "it did not come back after a change of coordinator"
    else:
        allowed_s = START_S if worker.pid else NURSERY_S
        what = f"it was {'started' if worker.pid else 'asked for'} and said nothing for {silent_s:.0f} s"
    return LostWorker(worker.worker, "silent", what, silent_s) if silent_s > allowed_s else None


def _laggards(roll: MembershipState, now_s: float) -> Iterator[LostWorker]:
    """Members that hold up the others: behind in steps, or not in the lobby in time."""
    if roll.stage == "gathering" and roll.abandoned:
        step_s = median(roll.step_s) if roll.step_s else 0.0
        if now_s - roll.since_s > max(COME_S, COME_STEPS * step_s):
            late = [w for w in roll.crew if not w.over and not roll.back(w)]
            yield from (
                LostWorker(w.worker, "stuck", f"it did not come to the lobby: {w.phase}", 0.0) for w in late
            )
    elif roll.stage == "running" and _overdue(roll, now_s):
        crew = [w for w in roll.crew if w.connected and not w.over]
        first = max((w.step for w in crew), default=0)
        behind = [w for w in crew if w.step < first and w.phase == "step"]
        detail = f"at step {{}} for {now_s - roll.moved_s:.0f} s, while others wait at {first}"
        yield from (LostWorker(w.worker, "stuck", detail.format(w.step), 0.0) for w in behind)


def _deserters(roll: MembershipState, now_s: float) -> Iterator[LostWorker]:
    """Members that stopped alone: nobody follows them, and nobody is busy with the end."""
    others = [w for w in roll.crew if w.connected and not w.over]
    if any(w.phase in ("saving", "evaluating") for w in others) or not others:
        return
    for worker in roll.crew:
        if worker.outcome == "stopped" and now_s - worker.done_s > DONE_S:
            yield LostWorker(worker.worker, "exit", "it was asked to stop, alone", 0.0)


def _overdue(roll: MembershipState, now_s: float) -> bool:
    phases = {w.phase for w in roll.crew if w.connected and not w.over}
    if not phases or "paused" in phases:
        return False
    if phases - {"step", "lobby"}:
        allowed_s = FORMING_S if "forming" in phases else ASIDE_S
    else:
        allowed_s = max(STUCK_S, STUCK_STEPS * median(roll.step_s)) if roll.step_s else FIRST_STEP_S
    return now_s - roll.moved_s > allowed_s


def _decide_end(roll: MembershipState, now_s: float) -> End | None:
    if roll.stops > 1:
        return End("stopped")  # whoever asks twice does not want to wait
    for worker in roll.workers.values():
        if worker.outcome == "failed" and worker.error is not None:
            return End("failed", worker.error)
    first = next((w for w in roll.crew if w.rank == 0), None)
    if first is not None and first.outcome is not None:
        waits = [w for w in roll.crew if not w.over]
        busy = any(w.phase in ("saving", "evaluating") for w in waits)
        if not waits or (first.outcome == "finished" and not busy and now_s - first.done_s > DONE_S):
            return End(first.outcome)
    if roll.stop and roll.stage == "idle" and not roll.kept:
        return End("stopped")  # with members that hold state a generation forms, to save it
    return None


def _finished(roll: MembershipState) -> bool:
    """Whether the result is written: whoever is lost now is not missed."""
    return any(w.rank == 0 and w.outcome == "finished" for w in roll.crew)


def _decide_running(roll: MembershipState, now_s: float, used: Callable[[int], int]) -> Move | None:
    if roll.awaited:
        return None  # they would not hear it
    if roll.broken is not None:
        return AbandonGeneration(roll.broken)
    for worker in roll.crew:
        if roll.back(worker):
            return (
                DrainGeneration(f"{worker.worker} is at a border")
                if worker.why == "border"
                else AbandonGeneration(f"{worker.worker}: {worker.why}")
            )
        unaware = worker.ready and worker.generation != roll.generation
        if unaware and now_s - roll.since_s > COME_S:
            return AbandonGeneration(f"{worker.worker} does not know of the generation")
    if _overdue(roll, now_s):
        return AbandonGeneration(f"no step for {now_s - roll.moved_s:.0f} s")
    if roll.stop and not roll.called_stop:
        return DrainGeneration("asked to stop", stop=True)
    if roll.stop or any(w.over or not w.connected for w in roll.crew):
        return None
    return _decide_change(roll, now_s, used)


def _decide_change(roll: MembershipState, now_s: float, used: Callable[[int], int]) -> DrainGeneration | None:
    """Whether another number of members would be better, and the newcomers were given time to gather."""
    count, newcomers = len(roll.members), roll.newcomers
    if count > roll.wanted and used(roll.wanted) < count:
        return DrainGeneration(f"{roll.wanted} workers are wanted, not {count}", departs=True)
    possible = min(roll.wanted, count + len(newcomers))
    if not newcomers or used(possible) <= count:
        return None
    if count + len(newcomers) < roll.wanted and _more_to_come(roll, newcomers, now_s):
        return None
    return DrainGeneration(f"{listed(newcomers[: possible - count])} joined")


def _more_to_come(roll: MembershipState, newcomers: list[WorkerState], now_s: float) -> bool:
    """Whether others come at about the same time."""
    latest_s = max(w.ready_s or 0.0 for w in newcomers)
    starting = any(not w.connected and now_s - w.since_s < STARTING_S for w in roll.alive)
    return starting or now_s - latest_s < TOGETHER_S


def _decide_gathering(roll: MembershipState, now_s: float) -> Move | None:
    crew = [w for w in roll.crew if not w.over]
    if not roll.abandoned:
        failed = [f"{w.worker}: {w.why}" for w in crew if roll.back(w) and w.why != "border"]
        if roll.broken is not None or failed:
            return AbandonGeneration(roll.broken or failed[0])
        if _overdue(roll, now_s) and not all(roll.back(w) for w in crew):
            return AbandonGeneration(f"no step for {now_s - roll.moved_s:.0f} s")
    return Drained() if all(roll.back(w) for w in crew) else None


def _decide_idle(roll: MembershipState, now_s: float, used: Callable[[int], int]) -> Form | None:
    ready = roll.ready
    if not ready or now_s < roll.form_after_s:
        return None
    if len(ready) >= roll.wanted:
        return Form(roll.reason or "all workers are here")
    if roll.kept and used(len(ready)) > 0:
        return Form(roll.reason)
    incomplete = 0 < len(roll.agents) < roll.nodes or any(not w.connected for w in roll.alive)
    if incomplete and now_s - roll.since_s < FIRST_S:
        return None
    latest_s = max(w.ready_s or 0.0 for w in ready)
    return Form(f"{len(ready)} of {roll.wanted} workers are here") if now_s - latest_s > TOGETHER_S else None


def _hire(roll: MembershipState, count: int) -> list[StartWorker | StopWorker]:
    """Machines get equal parts; that of a machine which is away stays open until it is back."""
    each = math.ceil((roll.wanted + roll.spares) / roll.nodes)
    load = {node: sum(w.node == node for w in roll.alive) for node in roll.agents}
    hired: list[StartWorker | StopWorker] = []
    for _ in range(count):
        free = [n for n, agent in roll.agents.items() if load[n] < min(each, agent.most or each)]
        if not free:
            break
        node = min(free, key=lambda n: (roll.slow_nodes[n], load[n], n))
        load[node] += 1
        hired.append(StartWorker(node))
    return hired


def _failed(message: str, roll: MembershipState) -> dict[str, Any]:
    return {"kind": "ProcessFailed", "message": message, "hint": roll.last_words or None}
