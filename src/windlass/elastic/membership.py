"""Decides the membership of an elastic run: lost workers, the end of a generation, the next generation.

    find_losses -> decide -> scale      each a pure function of the state and the time

A process that exited and a connection that closed are losses at once. The allowed silence depends on the
worker's own heartbeat intervals, so a busy machine is not taken for a dead one. A worker that sends
heartbeats but makes no progress is found by the duration of earlier steps.
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
"""Silence that counts as loss: SILENT_GAPS times the widest recent heartbeat gap, within these bounds."""
QUIET_S = 0.8
"""Several missed heartbeats."""
EXPECTED_S = 3.0
"""Time for members of an earlier leader's generation to say hello."""
FORK_SERVER_S, START_S = 300.0, 60.0
"""From the request for a worker to its start (a fork server may have to load); from there to its hello."""
DRAIN_S, DRAIN_STEPS = 3.0, 4.0
"""Time for survivors to leave the generation after a loss; the same in steps, where these are long."""
FORMING_S = 15.0
STUCK_S, STUCK_STEPS = 10.0, 20.0
"""Without a completed step while all members report the phase `step`."""
FIRST_STEP_S = 300.0
"""The same before the first step, which may compile."""
ASIDE_S = 600.0
"""Without progress in another phase: saving, evaluating."""
TOGETHER_S = 0.3
"""How long newcomers wait, so that several join in one generation."""
STARTING_S = 1.0
"""How long newcomers wait for workers that are being started; training continues meanwhile."""
FIRST_S = 20.0
"""Time for machines and workers to start, before a generation forms without them."""
DONE_S = 5.0
"""Time for the other members to end, once rank 0 has."""
EARLY_S, MAX_EARLY = 5.0, 5
"""An exit within EARLY_S of the start is early; MAX_EARLY of them in a row fail the run."""
MAX_FRUITLESS = 20
"""Generations in a row without a step, after which the run fails."""


@dataclass(frozen=True)
class LostWorker:
    """A worker to be counted as lost."""

    worker: str
    how: str
    """exit, connection, silent, stuck or slow."""
    detail: str
    silent_s: float


@dataclass(frozen=True)
class AbandonGeneration:
    """The generation cannot continue: its members leave it at once."""

    reason: str


@dataclass(frozen=True)
class DrainGeneration:
    """The members of the generation leave it after their current step."""

    reason: str
    stop: bool = False
    departs: bool = False
    """Whether some of them will not be in the next generation."""


@dataclass(frozen=True)
class Form:
    """Form the next generation from the waiting workers."""

    reason: str


@dataclass(frozen=True)
class Drained:
    """All remaining members of the generation wait for an assignment."""


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
    """Dismiss a waiting worker."""

    worker: str
    reason: str


def find_losses(state: MembershipState, now_s: float) -> list[LostWorker]:
    """Return the lost workers. Members that end with an outcome are not lost."""
    found = {loss.worker: loss for worker in state.alive if (loss := _loss_of(state, worker, now_s))}
    for loss in (*_stragglers(state, now_s), *_early_stoppers(state, now_s)):
        found.setdefault(loss.worker, loss)
    return list(found.values())


def cut_off(state: MembershipState, losses: list[LostWorker], now_s: float) -> bool:
    """Whether the leader itself is cut off: more than half of the members, on other machines, fell silent.

    They do not fall silent at the very same moment; so once one member counts as lost, members that have
    missed several heartbeats count with it.
    """
    if not any(loss.how == "silent" for loss in losses):
        return False
    quiet = [w for w in state.live_members if w.connected and now_s - w.last_seen_s > QUIET_S]
    return 2 * sum(w.node != state.home for w in quiet) > len(state.members)


def decide(state: MembershipState, now_s: float, used: Callable[[int], int]) -> Move | None:
    """Return the next action; `used(n)` is the number of workers, of n, that a layout can use."""
    if state.early >= MAX_EARLY:
        return End("failed", _failed(f"{state.early} workers in a row died soon after their start", state))
    if state.fruitless >= MAX_FRUITLESS:
        return End("failed", _failed(f"{state.fruitless} generations in a row ended before a step", state))
    if (end := _decide_end(state, now_s)) is not None or _finished(state):
        return end
    if state.stage == "running":
        return _decide_running(state, now_s, used)
    if state.stage == "gathering":
        return _decide_gathering(state, now_s)
    return _decide_idle(state, now_s, used)


def scale(state: MembershipState, now_s: float) -> list[StartWorker | StopWorker]:
    """Start or stop workers to reach the wanted number, spares included, on the least loaded machines."""
    if state.stop or state.awaited or any(w.outcome is not None for w in state.live_members):
        return []
    slow = [w for w in state.alive if w.slow and w.ready]
    if slow:
        return [StopWorker(w.worker, "it is far slower than the other workers") for w in slow]
    alive, total = state.alive, state.wanted + state.spares
    if len(alive) < total and now_s >= state.start_after_s:
        return _start_workers(state, total - len(alive))
    idle = [w for w in reversed(state.newcomers) if w.rank is None]
    surplus = len(alive) - total if len(state.members) <= state.wanted or state.stage == "idle" else 0
    return [
        StopWorker(w.worker, f"the run continues with {state.wanted} workers")
        for w in idle[: max(0, surplus)]
    ]


def comparable(state: MembershipState) -> bool:
    """Whether the members' paces are comparable: each has a share of the batch, and all are in steps."""
    layout, members = state.layout, state.live_members
    own_shares = all(layout.get(axis, 1) == 1 for axis in ("pp", "cp", "tp"))
    steady = state.stage == "running" and state.progressed and not state.stop
    return own_shares and steady and all(w.connected and not w.over and w.phase == "step" for w in members)


def shares_for(state: MembershipState, layout: Layout, members: list[str]) -> tuple[int, ...] | None:
    """Return the shares of the next generation: as measured if it has these members, else the layout's."""
    wanted = state.next_shares
    if wanted is None or wanted.keys() != set(members) or layout.replicas != len(members):
        return layout.shares
    return tuple(wanted[member] for member in members)


def silence_s(worker: WorkerState) -> float:
    """Return how long a worker may be silent: a multiple of its own heartbeat gap, within bounds."""
    return min(MAX_SILENT_S, max(SILENT_S, SILENT_GAPS * worker.gap_s))


def _loss_of(state: MembershipState, worker: WorkerState, now_s: float) -> LostWorker | None:
    silent_s = now_s - worker.last_seen_s
    if worker.exit is not None:
        return LostWorker(worker.worker, "exit", worker.exit, silent_s)
    if worker.disconnected:
        return LostWorker(worker.worker, "connection", "its connection was closed", silent_s)
    if worker.connected:
        allowed_s, what = silence_s(worker), f"no heartbeat for {silent_s:.1f} s"
    elif worker.expected:
        allowed_s, what = EXPECTED_S, "it did not reconnect after a change of leader"
    else:
        allowed_s = START_S if worker.pid else FORK_SERVER_S
        what = f"it was {'started' if worker.pid else 'requested'} {silent_s:.0f} s ago and has not connected"
    return LostWorker(worker.worker, "silent", what, silent_s) if silent_s > allowed_s else None


def _stragglers(state: MembershipState, now_s: float) -> Iterator[LostWorker]:
    """Members that hold up the others: behind in steps, or late to leave an abandoned generation."""
    if state.stage == "gathering" and state.abandoned:
        step_s = median(state.step_s) if state.step_s else 0.0
        if now_s - state.since_s > max(DRAIN_S, DRAIN_STEPS * step_s):
            late = [w for w in state.live_members if not w.over and not state.has_drained(w)]
            yield from (
                LostWorker(w.worker, "stuck", f"it did not leave the abandoned generation: {w.phase}", 0.0)
                for w in late
            )
    elif state.stage == "running" and _overdue(state, now_s):
        members = [w for w in state.live_members if w.connected and not w.over]
        first = max((w.step for w in members), default=0)
        behind = [w for w in members if w.step < first and w.phase == "step"]
        detail = f"at step {{}} for {now_s - state.moved_s:.0f} s, while other members wait at {first}"
        yield from (LostWorker(w.worker, "stuck", detail.format(w.step), 0.0) for w in behind)


def _early_stoppers(state: MembershipState, now_s: float) -> Iterator[LostWorker]:
    """Members that ended as `stopped` while no other member is stopping, saving or evaluating: lost."""
    others = [w for w in state.live_members if w.connected and not w.over]
    if any(w.phase in ("saving", "evaluating") for w in others) or not others:
        return
    for worker in state.live_members:
        if worker.outcome == "stopped" and now_s - worker.done_s > DONE_S:
            yield LostWorker(worker.worker, "exit", "it stopped without a stop request to the run", 0.0)


def _overdue(state: MembershipState, now_s: float) -> bool:
    phases = {w.phase for w in state.live_members if w.connected and not w.over}
    if not phases or "paused" in phases:
        return False
    if phases - {"step", "waiting"}:
        allowed_s = FORMING_S if "forming" in phases else ASIDE_S
    else:
        allowed_s = max(STUCK_S, STUCK_STEPS * median(state.step_s)) if state.step_s else FIRST_STEP_S
    return now_s - state.moved_s > allowed_s


def _decide_end(state: MembershipState, now_s: float) -> End | None:
    if state.stops > 1:
        return End("stopped")  # a second request means: do not wait for a checkpoint
    for worker in state.workers.values():
        if worker.outcome == "failed" and worker.error is not None:
            return End("failed", worker.error)
    first = next((w for w in state.live_members if w.rank == 0), None)
    if first is not None and first.outcome is not None:
        waits = [w for w in state.live_members if not w.over]
        busy = any(w.phase in ("saving", "evaluating") for w in waits)
        if not waits or (first.outcome == "finished" and not busy and now_s - first.done_s > DONE_S):
            return End(first.outcome)
    if state.stop and state.stage == "idle" and not state.kept:
        return End("stopped")  # members that hold state form a generation first, to save it
    return None


def _finished(state: MembershipState) -> bool:
    """Whether the result is written: a loss no longer matters."""
    return any(w.rank == 0 and w.outcome == "finished" for w in state.live_members)


def _decide_running(state: MembershipState, now_s: float, used: Callable[[int], int]) -> Move | None:
    if state.awaited:
        return None  # members that have not reconnected would miss the message
    if state.broken is not None:
        return AbandonGeneration(state.broken)
    for worker in state.live_members:
        if state.has_drained(worker):
            return (
                DrainGeneration(f"{worker.worker} is at a step boundary")
                if worker.why == "drain"
                else AbandonGeneration(f"{worker.worker}: {worker.why}")
            )
        unaware = worker.ready and worker.generation != state.generation
        if unaware and now_s - state.since_s > DRAIN_S:
            return AbandonGeneration(f"{worker.worker} did not receive its assignment")
    if _overdue(state, now_s):
        return AbandonGeneration(f"no step for {now_s - state.moved_s:.0f} s")
    if state.stop and not state.called_stop:
        return DrainGeneration("a stop was requested", stop=True)
    if state.stop or any(w.over or not w.connected for w in state.live_members):
        return None
    return _decide_change(state, now_s, used)


def _decide_change(
    state: MembershipState, now_s: float, used: Callable[[int], int]
) -> DrainGeneration | None:
    """Drain if another number of members can be used, once newcomers have had time to gather."""
    count, newcomers = len(state.members), state.newcomers
    if count > state.wanted and used(state.wanted) < count:
        return DrainGeneration(f"{state.wanted} workers are requested, not {count}", departs=True)
    possible = min(state.wanted, count + len(newcomers))
    if not newcomers or used(possible) <= count:
        return None
    if count + len(newcomers) < state.wanted and _more_to_come(state, newcomers, now_s):
        return None
    return DrainGeneration(f"{listed(newcomers[: possible - count])} joined")


def _more_to_come(state: MembershipState, newcomers: list[WorkerState], now_s: float) -> bool:
    """Whether more workers are about to join."""
    latest_s = max(w.ready_s or 0.0 for w in newcomers)
    starting = any(not w.connected and now_s - w.since_s < STARTING_S for w in state.alive)
    return starting or now_s - latest_s < TOGETHER_S


def _decide_gathering(state: MembershipState, now_s: float) -> Move | None:
    members = [w for w in state.live_members if not w.over]
    if not state.abandoned:
        failed = [f"{w.worker}: {w.why}" for w in members if state.has_drained(w) and w.why != "drain"]
        if state.broken is not None or failed:
            return AbandonGeneration(state.broken or failed[0])
        if _overdue(state, now_s) and not all(state.has_drained(w) for w in members):
            return AbandonGeneration(f"no step for {now_s - state.moved_s:.0f} s")
    return Drained() if all(state.has_drained(w) for w in members) else None


def _decide_idle(state: MembershipState, now_s: float, used: Callable[[int], int]) -> Form | None:
    ready = state.ready
    if not ready or now_s < state.form_after_s:
        return None
    if len(ready) >= state.wanted:
        return Form(state.reason or "all workers are ready")
    if state.kept and used(len(ready)) > 0:
        return Form(state.reason)
    incomplete = 0 < len(state.agents) < state.nodes or any(not w.connected for w in state.alive)
    if incomplete and now_s - state.since_s < FIRST_S:
        return None
    latest_s = max(w.ready_s or 0.0 for w in ready)
    return (
        Form(f"{len(ready)} of {state.wanted} workers are ready") if now_s - latest_s > TOGETHER_S else None
    )


def _start_workers(state: MembershipState, count: int) -> list[StartWorker | StopWorker]:
    """Machines get equal numbers; those of a disconnected machine stay unfilled until it is back."""
    per_node = math.ceil((state.wanted + state.spares) / state.nodes)
    load = {node: sum(w.node == node for w in state.alive) for node in state.agents}
    started: list[StartWorker | StopWorker] = []
    for _ in range(count):
        free = [
            n for n, agent in state.agents.items() if load[n] < min(per_node, agent.max_workers or per_node)
        ]
        if not free:
            break
        node = min(free, key=lambda n: (state.slow_nodes[n], load[n], n))
        load[node] += 1
        started.append(StartWorker(node))
    return started


def _failed(message: str, state: MembershipState) -> dict[str, Any]:
    return {"kind": "ProcessFailed", "message": message, "hint": state.last_words or None}
