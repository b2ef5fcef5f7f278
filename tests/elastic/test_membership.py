"""Lost workers, the end of a generation and the next one: decided from the state and the time alone."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.elastic.membership import (
    MAX_EARLY,
    AbandonGeneration,
    Drained,
    DrainGeneration,
    End,
    Form,
    StartWorker,
    StopWorker,
    cut_off,
    decide,
    find_losses,
    scale,
    silence_s,
)
from windlass.elastic.membership_state import AgentState, MembershipState, WorkerState
from windlass.plan.stragglers import MIN_TOTALS, decide_pace
from windlass.spec.protocol.elastic import Heartbeat, WaitingForAssignment

NOW_S = 100.0


def everyone(workers: int) -> int:
    return workers


def running(count: int, *, wanted: int | None = None, spares: int = 0, nodes: int = 1) -> MembershipState:
    """A generation of `count` members in its steps, seen a moment ago."""
    state = MembershipState(wanted or count, spares, "node0", since_s=NOW_S - 50, nodes=nodes)
    state.agents = {f"node{n}": AgentState(f"node{n}", "127.0.0.1") for n in range(nodes)}
    for rank in range(count):
        worker = joined(state, f"w{rank}", f"node{rank % nodes}")
        worker.assign(rank, 7)
        worker.generation, worker.step, worker.phase = 7, 40, "step"
    state.generation, state.members = 7, tuple(f"w{rank}" for rank in range(count))
    state.enter_stage("running", NOW_S - 50)
    state.moved_s, state.progressed = NOW_S, True
    state.step_s.extend([0.1] * 5)
    return state


def joined(
    state: MembershipState, name: str, node: str = "node0", *, ready_s: float | None = None
) -> WorkerState:
    worker = WorkerState(name, node, NOW_S - 60, NOW_S - 0.1, connected=True, ready_s=ready_s)
    worker.phase, worker.gap_s = "waiting", 0.2
    state.workers[name] = worker
    return worker


def lost(state: MembershipState, now_s: float = NOW_S) -> dict[str, str]:
    return {loss.worker: loss.how for loss in find_losses(state, now_s)}


def test_nothing_happens_while_all_is_well() -> None:
    state = running(4)
    assert lost(state) == {}
    assert decide(state, NOW_S, everyone) is None
    assert scale(state, NOW_S) == []


def test_an_ended_process_and_a_closed_connection_are_losses_at_once() -> None:
    state = running(4)
    state.workers["w1"].exit = "was killed by SIGKILL"
    state.workers["w2"].disconnected = True
    assert lost(state) == {"w1": "exit", "w2": "connection"}


def test_silence_counts_by_the_habit_of_the_worker() -> None:
    state = running(2)
    state.workers["w0"].gap_s, state.workers["w1"].gap_s = 0.05, 0.5
    assert lost(state, NOW_S + 2.0) == {"w0": "silent"}
    assert lost(state, NOW_S + 4.5) == {"w0": "silent", "w1": "silent"}


@given(st.lists(st.floats(0.0, 100.0), max_size=60))
def test_silence_is_bounded_whatever_the_beats_were(gaps: list[float]) -> None:
    worker, now_s = WorkerState("w", "n", 0.0, 0.0), 0.0
    for gap in gaps:
        now_s += gap
        worker.on_heartbeat(Heartbeat(1, 1), now_s)
    assert 1.5 <= silence_s(worker) <= 5.0


def test_beats_with_ordinary_medians_and_long_totals_set_a_worker_aside() -> None:
    """A worker that is stopped and continued in slices: 40 steps of 1 ms a beat, one of them 400 ms late."""
    workers = {name: WorkerState(name, "n", 0.0, 0.0) for name in ("w0", "w1")}
    for beat in range(1, 1 + MIN_TOTALS):
        for name, total_s in (("w0", 0.04), ("w1", 0.44)):
            heartbeat = Heartbeat(1, 40 * beat, 0.001, total_s=total_s, steps=40)
            workers[name].on_heartbeat(heartbeat, 0.2 * beat)
    histories = {name: list(worker.paces) for name, worker in workers.items()}
    totals = {name: list(worker.totals) for name, worker in workers.items()}
    rules = {"slow_factor": 4.0, "balance": False, "spares": 1}
    assert decide_pace(histories, None, 8, **rules).aside == ()
    assert decide_pace(histories, None, 8, **rules, totals=totals).aside == ("w1",)


def test_most_members_silent_at_once_on_other_machines_mean_that_the_leader_is_cut_off() -> None:
    state = running(4, nodes=4)
    for name, silent_s in (("w1", 1.7), ("w2", 1.1), ("w3", 0.9)):
        state.workers[name].last_seen_s = NOW_S - silent_s
    assert cut_off(state, find_losses(state, NOW_S), NOW_S)
    state.workers["w2"].last_seen_s = state.workers["w3"].last_seen_s = NOW_S - 0.3
    assert not cut_off(state, find_losses(state, NOW_S), NOW_S)
    here = running(4)
    for name in ("w1", "w2", "w3"):
        here.workers[name].last_seen_s = NOW_S - 10
    assert not cut_off(here, find_losses(here, NOW_S), NOW_S)


def test_members_of_an_earlier_coordinator_have_time_to_say_hello() -> None:
    state = running(2)
    state.workers["w1"].connected, state.workers["w1"].expected = False, True
    assert lost(state, NOW_S + 1.0) == {}
    assert lost(state, NOW_S + 1.2) == {}
    state.workers["w0"].last_seen_s = NOW_S + 4
    assert lost(state, NOW_S + 4) == {"w1": "silent"}


def test_a_worker_may_take_long_to_be_started_but_not_to_speak() -> None:
    state = running(1, wanted=2)
    state.workers["x"] = WorkerState("x", "node0", NOW_S, NOW_S)
    seen(state, NOW_S)
    state.workers["w0"].last_seen_s = NOW_S + 100
    assert lost(state, NOW_S + 100) == {}
    state.workers["x"].pid = 4711
    assert lost(state, NOW_S + 100) == {"x": "silent"}


def test_nothing_is_decided_before_the_members_have_reported() -> None:
    state = running(3, wanted=4)
    state.workers["w1"].connected, state.workers["w1"].expected = False, True
    state.broken = "w2 is lost"
    assert decide(state, NOW_S, everyone) is None
    assert scale(state, NOW_S) == []
    state.workers["w1"].connected, state.workers["w1"].expected = True, False
    assert decide(state, NOW_S, everyone) == AbandonGeneration("w2 is lost")


def test_a_member_behind_the_others_is_stuck() -> None:
    state = running(3)
    state.workers["w2"].step = 39
    seen(state, NOW_S + 11)
    assert lost(state, NOW_S + 11) == {"w2": "stuck"}


def test_when_no_worker_stands_out_all_are_called() -> None:
    state = running(3)
    seen(state, NOW_S + 11)
    assert lost(state, NOW_S + 11) == {}
    assert isinstance(decide(state, NOW_S + 11, everyone), AbandonGeneration)


def test_long_steps_are_not_stuck() -> None:
    state = running(3)
    state.step_s.extend([5.0] * 32)
    seen(state, NOW_S + 90)
    assert decide(state, NOW_S + 90, everyone) is None


@pytest.mark.parametrize(("phase", "allowed_s"), [("forming", 15), ("saving", 600), ("paused", 100_000)])
def test_other_phases_have_bounds_of_their_own(phase: str, allowed_s: float) -> None:
    state = running(2)
    for worker in state.live_members:
        worker.phase = phase
    seen(state, NOW_S + allowed_s - 1)
    assert decide(state, NOW_S + allowed_s - 1, everyone) is None
    seen(state, NOW_S + allowed_s + 1)
    assert lost(state, NOW_S + allowed_s + 1) == {}
    if phase != "paused":
        assert isinstance(decide(state, NOW_S + allowed_s + 1, everyone), AbandonGeneration)


def test_a_broken_generation_is_abandoned_gathered_and_followed_at_once() -> None:
    state = running(4)
    del state.workers["w1"]
    state.broken = "w1 is lost"
    assert decide(state, NOW_S, everyone) == AbandonGeneration("w1 is lost")
    state.abandoned, state.reason = True, "w1 is lost"
    state.enter_stage("gathering", NOW_S)
    assert decide(state, NOW_S, everyone) is None
    come(state, "w0", "w2", "w3")
    assert decide(state, NOW_S, everyone) == Drained()
    state.kept = True
    state.enter_stage("idle", NOW_S)
    assert decide(state, NOW_S, everyone) == Form("w1 is lost")
    assert [w.worker for w in state.ready] == ["w0", "w2", "w3"]


def test_a_survivor_that_does_not_come_is_lost() -> None:
    state = running(3)
    state.abandoned = True
    state.enter_stage("gathering", NOW_S)
    come(state, "w0", "w1")
    seen(state, NOW_S + 3.5)
    assert lost(state, NOW_S + 2.5) == {}
    assert lost(state, NOW_S + 3.5) == {"w2": "stuck"}


def test_a_member_that_failed_by_itself_ends_the_generation() -> None:
    state = running(3)
    state.workers["w1"].mark_waiting(WaitingForAssignment(7, 40, "connection reset"), NOW_S)
    assert decide(state, NOW_S, everyone) == AbandonGeneration("w1: connection reset")


def test_a_word_from_before_the_assignment_is_no_return() -> None:
    state = running(3)
    state.workers["w1"].mark_waiting(WaitingForAssignment(6, 40, "drain"), NOW_S)
    assert decide(state, NOW_S, everyone) is None


def test_newcomers_are_taken_in_together() -> None:
    state = running(2, wanted=4)
    joined(state, "x0", ready_s=NOW_S)
    assert decide(state, NOW_S + 0.1, everyone) is None
    joined(state, "x1", ready_s=NOW_S + 0.1)
    assert decide(state, NOW_S + 0.1, everyone) == DrainGeneration("x0, x1 joined")


def test_a_newcomer_that_no_layout_could_use_stays_a_spare() -> None:
    state = running(2, wanted=3)
    joined(state, "x0", ready_s=NOW_S - 5)
    assert decide(state, NOW_S, lambda n: n - n % 2) is None
    assert isinstance(decide(state, NOW_S, everyone), DrainGeneration)


def test_a_spare_of_a_full_run_waits() -> None:
    state = running(2, spares=1)
    joined(state, "x0", ready_s=NOW_S - 5)
    assert decide(state, NOW_S, everyone) is None
    assert scale(state, NOW_S) == []


def test_fewer_wanted_members_drain_and_the_newest_are_dismissed() -> None:
    state = running(4, wanted=2)
    assert isinstance(decide(state, NOW_S, everyone), DrainGeneration)
    assert scale(state, NOW_S) == []
    come(state, "w0", "w1", "w2", "w3")
    state.enter_stage("idle", NOW_S)
    for rank, worker in enumerate(state.ready):
        worker.assign(rank if rank < 2 else None, 8)
    state.generation, state.members = 8, ("w0", "w1")
    state.enter_stage("running", NOW_S)
    stopped = [change.worker for change in scale(state, NOW_S) if isinstance(change, StopWorker)]
    assert stopped == ["w3", "w2"]


def test_lost_workers_are_replaced_where_there_is_most_room() -> None:
    state = running(3, wanted=4, spares=1, nodes=2)
    assert scale(state, NOW_S) == [StartWorker("node1"), StartWorker("node0")]


def test_the_part_of_a_machine_that_is_away_stays_open() -> None:
    state = running(2, wanted=4, nodes=2)
    state.workers["w1"].node = "node0"
    del state.agents["node1"]
    assert scale(state, NOW_S) == []
    state.agents["node1"] = AgentState("node1", "127.0.0.1")
    assert scale(state, NOW_S) == [StartWorker("node1"), StartWorker("node1")]


def test_an_agent_starts_no_more_than_it_may() -> None:
    state = running(1, wanted=4)
    state.agents["node0"].max_workers = 2
    assert scale(state, NOW_S) == [StartWorker("node0")]


def test_workers_that_die_early_again_and_again_end_the_run_with_their_words() -> None:
    state = running(2)
    state.early, state.last_words = MAX_EARLY, "ImportError"
    end = decide(state, NOW_S, everyone)
    assert isinstance(end, End)
    assert end.outcome == "failed"
    assert end.error is not None
    assert end.error["hint"] == "ImportError"


def test_the_run_is_over_when_all_members_are_done() -> None:
    state = running(2)
    state.workers["w0"].outcome, state.workers["w0"].done_s = "finished", NOW_S
    assert decide(state, NOW_S, everyone) is None
    state.workers["w1"].outcome = "finished"
    assert decide(state, NOW_S, everyone) == End("finished")


def test_a_worker_lost_after_the_result_is_written_is_not_missed() -> None:
    state = running(2)
    state.workers["w0"].outcome, state.workers["w0"].done_s = "finished", NOW_S
    del state.workers["w1"]
    state.broken = "w1 is lost"
    assert decide(state, NOW_S, everyone) == End("finished")


def test_a_member_that_stopped_alone_is_missed() -> None:
    state = running(2)
    state.workers["w1"].outcome, state.workers["w1"].done_s = "stopped", NOW_S
    seen(state, NOW_S + 6)
    assert decide(state, NOW_S + 6, everyone) is None
    assert lost(state, NOW_S + 6) == {"w1": "exit"}


def test_a_mistake_of_the_user_ends_the_run_with_its_reason() -> None:
    state = running(2)
    state.workers["w1"].outcome, state.workers["w1"].error = "failed", {"kind": "BadInput", "message": "no"}
    assert decide(state, NOW_S, everyone) == End("failed", {"kind": "BadInput", "message": "no"})


def test_a_stop_is_requested_of_all_members_once() -> None:
    state = running(2)
    state.stops = 1
    assert decide(state, NOW_S, everyone) == DrainGeneration("a stop was requested", stop=True)
    state.called_stop = True
    assert decide(state, NOW_S, everyone) is None
    assert scale(state, NOW_S) == []


def test_a_second_request_does_not_wait() -> None:
    state = running(2)
    state.stops = 2
    assert decide(state, NOW_S, everyone) == End("stopped")


def test_a_stop_of_a_run_that_waits_ends_it() -> None:
    state = MembershipState(2, 0, "node0", since_s=NOW_S)
    state.stops = 1
    assert decide(state, NOW_S, everyone) == End("stopped")


def test_the_first_generation_waits_for_those_that_are_being_started() -> None:
    state = MembershipState(3, 0, "node0", since_s=NOW_S)
    state.agents["node0"] = AgentState("node0", "127.0.0.1")
    joined(state, "x0", ready_s=NOW_S)
    state.workers["x1"] = WorkerState("x1", "node0", NOW_S, NOW_S)
    assert decide(state, NOW_S + 5, everyone) is None
    assert isinstance(decide(state, NOW_S + 21, everyone), Form)


def test_a_process_that_was_suspended_blames_no_other() -> None:
    state = running(3)
    state.shift_clock(20.0)
    assert lost(state, NOW_S + 20) == {}
    assert decide(state, NOW_S + 20, everyone) is None


CHANGES: list[Callable[[WorkerState], None]] = [
    lambda w: setattr(w, "cut", True),
    lambda w: setattr(w, "exit", "gone"),
    lambda w: setattr(w, "last_seen_s", NOW_S - 30),
    lambda w: w.mark_waiting(WaitingForAssignment(7, 40, "drain"), NOW_S),
    lambda w: w.mark_waiting(WaitingForAssignment(7, 40, "failed"), NOW_S),
    lambda w: setattr(w, "outcome", "stopped"),
    lambda w: setattr(w, "dismissed", True),
]


@given(st.dictionaries(st.integers(0, 3), st.sampled_from(CHANGES)), st.integers(1, 6), st.floats(0, 100))
def test_decisions_never_fail_and_change_nothing(
    changes: dict[int, Callable[[WorkerState], None]], wanted: int, later_s: float
) -> None:
    state = running(4, wanted=wanted)
    for rank, change in changes.items():
        change(state.workers[f"w{rank}"])
    before = repr(state)
    losses = find_losses(state, NOW_S + later_s)
    assert {loss.worker for loss in losses} <= state.workers.keys()
    decide(state, NOW_S + later_s, everyone)
    scale(state, NOW_S + later_s)
    assert repr(state) == before


def seen(state: MembershipState, now_s: float) -> None:
    """All workers send heartbeats, and none makes progress."""
    for worker in state.workers.values():
        worker.last_seen_s = now_s


def come(state: MembershipState, *names: str) -> None:
    for name in names:
        state.workers[name].mark_waiting(WaitingForAssignment(7, 40, "drain"), NOW_S)
