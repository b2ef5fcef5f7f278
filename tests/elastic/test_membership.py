"""Who is lost, when a generation ends, who forms the next: decided from facts and the time alone."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.elastic.membership import (
    MAX_BACK_OFF_S,
    MAX_EARLY,
    AbandonGeneration,
    Drained,
    DrainGeneration,
    End,
    Form,
    StartWorker,
    StopWorker,
    back_off_s,
    cut_off,
    decide,
    find_losses,
    silence_s,
    staff,
)
from windlass.elastic.membership_state import AgentState, MembershipState, WorkerState
from windlass.plan.stragglers import MIN_TOTALS, decide_pace
from windlass.spec.protocol.elastic import Heartbeat, WaitingForAssignment

NOW_S = 100.0


def everyone(workers: int) -> int:
    return workers


def running(count: int, *, wanted: int | None = None, spares: int = 0, nodes: int = 1) -> MembershipState:
    """A generation of `count` members in its steps, heard a moment ago."""
    roll = MembershipState(wanted or count, spares, "node0", since_s=NOW_S - 50, nodes=nodes)
    roll.agents = {f"node{n}": AgentState(f"node{n}", "127.0.0.1") for n in range(nodes)}
    for rank in range(count):
        worker = joined(roll, f"w{rank}", f"node{rank % nodes}")
        worker.go(rank, 7)
        worker.generation, worker.step, worker.phase = 7, 40, "step"
    roll.generation, roll.members = 7, tuple(f"w{rank}" for rank in range(count))
    roll.turn("running", NOW_S - 50)
    roll.moved_s, roll.progressed = NOW_S, True
    roll.step_s.extend([0.1] * 5)
    return roll


def joined(
    roll: MembershipState, name: str, node: str = "node0", *, ready_s: float | None = None
) -> WorkerState:
    worker = WorkerState(name, node, NOW_S - 60, NOW_S - 0.1, connected=True, ready_s=ready_s)
    worker.phase, worker.gap_s = "lobby", 0.2
    roll.workers[name] = worker
    return worker


def lost(roll: MembershipState, now_s: float = NOW_S) -> dict[str, str]:
    return {loss.worker: loss.how for loss in find_losses(roll, now_s)}


def test_nothing_happens_while_all_is_well() -> None:
    roll = running(4)
    assert lost(roll) == {}
    assert decide(roll, NOW_S, everyone) is None
    assert staff(roll, NOW_S) == []


def test_an_ended_process_and_a_closed_connection_are_losses_at_once() -> None:
    roll = running(4)
    roll.workers["w1"].exit = "was killed by SIGKILL"
    roll.workers["w2"].cut = True
    assert lost(roll) == {"w1": "exit", "w2": "connection"}


def test_silence_counts_by_the_habit_of_the_worker() -> None:
    roll = running(2)
    roll.workers["w0"].gap_s, roll.workers["w1"].gap_s = 0.05, 0.5
    assert lost(roll, NOW_S + 2.0) == {"w0": "silent"}
    assert lost(roll, NOW_S + 4.5) == {"w0": "silent", "w1": "silent"}


@given(st.lists(st.floats(0.0, 100.0), max_size=60))
def test_silence_is_bounded_whatever_the_beats_were(gaps: list[float]) -> None:
    worker, now_s = WorkerState("w", "n", 0.0, 0.0), 0.0
    for gap in gaps:
        now_s += gap
        worker.beat(Heartbeat(1, 1), now_s)
    assert 1.5 <= silence_s(worker) <= 5.0


def test_beats_with_ordinary_medians_and_long_totals_set_a_worker_aside() -> None:
    """A worker that is stopped and continued in slices: 40 steps of 1 ms a beat, one of them 400 ms late."""
    workers = {name: WorkerState(name, "n", 0.0, 0.0) for name in ("w0", "w1")}
    for beat in range(1, 1 + MIN_TOTALS):
        for name, total_s in (("w0", 0.04), ("w1", 0.44)):
            told = Heartbeat(1, 40 * beat, 0.001, total_s=total_s, steps=40)
            workers[name].beat(told, 0.2 * beat)
    histories = {name: list(worker.paces) for name, worker in workers.items()}
    totals = {name: list(worker.totals) for name, worker in workers.items()}
    asked = {"slow_factor": 4.0, "balance": False, "spares": 1}
    assert decide_pace(histories, None, 8, **asked).aside == ()
    assert decide_pace(histories, None, 8, **asked, totals=totals).aside == ("w1",)


def test_most_members_silent_at_once_on_other_machines_mean_that_the_leader_is_cut_off() -> None:
    roll = running(4, nodes=4)
    for name, silent_s in (("w1", 1.7), ("w2", 1.1), ("w3", 0.9)):
        roll.workers[name].heard_s = NOW_S - silent_s
    assert cut_off(roll, find_losses(roll, NOW_S), NOW_S)
    roll.workers["w2"].heard_s = roll.workers["w3"].heard_s = NOW_S - 0.3
    assert not cut_off(roll, find_losses(roll, NOW_S), NOW_S)
    here = running(4)
    for name in ("w1", "w2", "w3"):
        here.workers[name].heard_s = NOW_S - 10
    assert not cut_off(here, find_losses(here, NOW_S), NOW_S)


def test_members_of_an_earlier_coordinator_have_time_to_say_hello() -> None:
    roll = running(2)
    roll.workers["w1"].connected, roll.workers["w1"].expected = False, True
    assert lost(roll, NOW_S + 1.0) == {}
    assert lost(roll, NOW_S + 1.2) == {}
    roll.workers["w0"].heard_s = NOW_S + 4
    assert lost(roll, NOW_S + 4) == {"w1": "silent"}


def test_a_worker_may_take_long_to_be_started_but_not_to_speak() -> None:
    roll = running(1, wanted=2)
    roll.workers["x"] = WorkerState("x", "node0", NOW_S, NOW_S)
    heard(roll, NOW_S)
    roll.workers["w0"].heard_s = NOW_S + 100
    assert lost(roll, NOW_S + 100) == {}
    roll.workers["x"].pid = 4711
    assert lost(roll, NOW_S + 100) == {"x": "silent"}


def test_nothing_is_decided_before_those_are_heard_who_would_have_to_obey() -> None:
    roll = running(3, wanted=4)
    roll.workers["w1"].connected, roll.workers["w1"].expected = False, True
    roll.broken = "w2 is lost"
    assert decide(roll, NOW_S, everyone) is None
    assert staff(roll, NOW_S) == []
    roll.workers["w1"].connected, roll.workers["w1"].expected = True, False
    assert decide(roll, NOW_S, everyone) == AbandonGeneration("w2 is lost")


def test_a_member_behind_the_others_is_stuck() -> None:
    roll = running(3)
    roll.workers["w2"].step = 39
    heard(roll, NOW_S + 11)
    assert lost(roll, NOW_S + 11) == {"w2": "stuck"}


def test_when_nobody_stands_out_all_are_called() -> None:
    roll = running(3)
    heard(roll, NOW_S + 11)
    assert lost(roll, NOW_S + 11) == {}
    assert isinstance(decide(roll, NOW_S + 11, everyone), AbandonGeneration)


def test_long_steps_are_not_stuck() -> None:
    roll = running(3)
    roll.step_s.extend([5.0] * 32)
    heard(roll, NOW_S + 90)
    assert decide(roll, NOW_S + 90, everyone) is None


@pytest.mark.parametrize(("phase", "allowed_s"), [("forming", 15), ("saving", 600), ("paused", 100_000)])
def test_other_phases_have_bounds_of_their_own(phase: str, allowed_s: float) -> None:
    roll = running(2)
    for worker in roll.crew:
        worker.phase = phase
    heard(roll, NOW_S + allowed_s - 1)
    assert decide(roll, NOW_S + allowed_s - 1, everyone) is None
    heard(roll, NOW_S + allowed_s + 1)
    assert lost(roll, NOW_S + allowed_s + 1) == {}
    if phase != "paused":
        assert isinstance(decide(roll, NOW_S + allowed_s + 1, everyone), AbandonGeneration)


def test_a_broken_generation_is_abandoned_gathered_and_followed_at_once() -> None:
    roll = running(4)
    del roll.workers["w1"]
    roll.broken = "w1 is lost"
    assert decide(roll, NOW_S, everyone) == AbandonGeneration("w1 is lost")
    roll.abandoned, roll.reason = True, "w1 is lost"
    roll.turn("gathering", NOW_S)
    assert decide(roll, NOW_S, everyone) is None
    come(roll, "w0", "w2", "w3")
    assert decide(roll, NOW_S, everyone) == Drained()
    roll.kept = True
    roll.turn("idle", NOW_S)
    assert decide(roll, NOW_S, everyone) == Form("w1 is lost")
    assert [w.worker for w in roll.ready] == ["w0", "w2", "w3"]


def test_a_survivor_that_does_not_come_is_lost() -> None:
    roll = running(3)
    roll.abandoned = True
    roll.turn("gathering", NOW_S)
    come(roll, "w0", "w1")
    heard(roll, NOW_S + 3.5)
    assert lost(roll, NOW_S + 2.5) == {}
    assert lost(roll, NOW_S + 3.5) == {"w2": "stuck"}


def test_a_member_that_failed_by_itself_ends_the_generation() -> None:
    roll = running(3)
    roll.workers["w1"].come(WaitingForAssignment(7, 40, "connection reset"), NOW_S)
    assert decide(roll, NOW_S, everyone) == AbandonGeneration("w1: connection reset")


def test_a_word_from_before_the_assignment_is_no_return() -> None:
    roll = running(3)
    roll.workers["w1"].come(WaitingForAssignment(6, 40, "border"), NOW_S)
    assert decide(roll, NOW_S, everyone) is None


def test_newcomers_are_taken_in_together() -> None:
    roll = running(2, wanted=4)
    joined(roll, "x0", ready_s=NOW_S)
    assert decide(roll, NOW_S + 0.1, everyone) is None
    joined(roll, "x1", ready_s=NOW_S + 0.1)
    assert decide(roll, NOW_S + 0.1, everyone) == DrainGeneration("x0, x1 joined")


def test_a_newcomer_that_no_layout_could_use_stays_a_spare() -> None:
    roll = running(2, wanted=3)
    joined(roll, "x0", ready_s=NOW_S - 5)
    assert decide(roll, NOW_S, lambda n: n - n % 2) is None
    assert isinstance(decide(roll, NOW_S, everyone), DrainGeneration)


def test_a_spare_of_a_full_run_waits() -> None:
    roll = running(2, spares=1)
    joined(roll, "x0", ready_s=NOW_S - 5)
    assert decide(roll, NOW_S, everyone) is None
    assert staff(roll, NOW_S) == []


def test_fewer_wanted_members_come_to_the_lobby_and_the_newest_are_dismissed() -> None:
    roll = running(4, wanted=2)
    assert isinstance(decide(roll, NOW_S, everyone), DrainGeneration)
    assert staff(roll, NOW_S) == []
    come(roll, "w0", "w1", "w2", "w3")
    roll.turn("idle", NOW_S)
    for rank, worker in enumerate(roll.ready):
        worker.go(rank if rank < 2 else None, 8)
    roll.generation, roll.members = 8, ("w0", "w1")
    roll.turn("running", NOW_S)
    fired = [change.worker for change in staff(roll, NOW_S) if isinstance(change, StopWorker)]
    assert fired == ["w3", "w2"]


def test_lost_workers_are_replaced_where_there_is_most_room() -> None:
    roll = running(3, wanted=4, spares=1, nodes=2)
    assert staff(roll, NOW_S) == [StartWorker("node1"), StartWorker("node0")]


def test_the_part_of_a_machine_that_is_away_stays_open() -> None:
    roll = running(2, wanted=4, nodes=2)
    roll.workers["w1"].node = "node0"
    del roll.agents["node1"]
    assert staff(roll, NOW_S) == []
    roll.agents["node1"] = AgentState("node1", "127.0.0.1")
    assert staff(roll, NOW_S) == [StartWorker("node1"), StartWorker("node1")]


def test_an_agent_starts_no_more_than_it_may() -> None:
    roll = running(1, wanted=4)
    roll.agents["node0"].most = 2
    assert staff(roll, NOW_S) == [StartWorker("node0")]


def test_workers_that_die_early_again_and_again_end_the_run_with_their_words() -> None:
    roll = running(2)
    roll.early, roll.last_words = MAX_EARLY, "ImportError"
    end = decide(roll, NOW_S, everyone)
    assert isinstance(end, End)
    assert end.outcome == "failed"
    assert end.error is not None
    assert end.error["hint"] == "ImportError"


@given(st.integers(0, 200))
def test_the_pause_before_a_start_grows_up_to_a_bound(early: int) -> None:
    assert 0 <= back_off_s(early) <= back_off_s(early + 1) <= MAX_BACK_OFF_S


def test_the_run_is_over_when_all_members_are_done() -> None:
    roll = running(2)
    roll.workers["w0"].outcome, roll.workers["w0"].done_s = "finished", NOW_S
    assert decide(roll, NOW_S, everyone) is None
    roll.workers["w1"].outcome = "finished"
    assert decide(roll, NOW_S, everyone) == End("finished")


def test_whoever_is_lost_after_the_result_is_written_is_not_missed() -> None:
    roll = running(2)
    roll.workers["w0"].outcome, roll.workers["w0"].done_s = "finished", NOW_S
    del roll.workers["w1"]
    roll.broken = "w1 is lost"
    assert decide(roll, NOW_S, everyone) == End("finished")


def test_a_member_that_stopped_alone_is_missed() -> None:
    roll = running(2)
    roll.workers["w1"].outcome, roll.workers["w1"].done_s = "stopped", NOW_S
    heard(roll, NOW_S + 6)
    assert decide(roll, NOW_S + 6, everyone) is None
    assert lost(roll, NOW_S + 6) == {"w1": "exit"}


def test_a_mistake_of_the_user_ends_the_run_with_its_reason() -> None:
    roll = running(2)
    roll.workers["w1"].outcome, roll.workers["w1"].error = "failed", {"kind": "BadInput", "message": "no"}
    assert decide(roll, NOW_S, everyone) == End("failed", {"kind": "BadInput", "message": "no"})


def test_a_stop_is_asked_of_all_members_once() -> None:
    roll = running(2)
    roll.stops = 1
    assert decide(roll, NOW_S, everyone) == DrainGeneration("asked to stop", stop=True)
    roll.called_stop = True
    assert decide(roll, NOW_S, everyone) is None
    assert staff(roll, NOW_S) == []


def test_whoever_asks_twice_does_not_wait() -> None:
    roll = running(2)
    roll.stops = 2
    assert decide(roll, NOW_S, everyone) == End("stopped")


def test_a_stop_of_a_run_that_waits_ends_it() -> None:
    roll = MembershipState(2, 0, "node0", since_s=NOW_S)
    roll.stops = 1
    assert decide(roll, NOW_S, everyone) == End("stopped")


def test_the_first_generation_waits_for_those_that_are_being_started() -> None:
    roll = MembershipState(3, 0, "node0", since_s=NOW_S)
    roll.agents["node0"] = AgentState("node0", "127.0.0.1")
    joined(roll, "x0", ready_s=NOW_S)
    roll.workers["x1"] = WorkerState("x1", "node0", NOW_S, NOW_S)
    assert decide(roll, NOW_S + 5, everyone) is None
    assert isinstance(decide(roll, NOW_S + 21, everyone), Form)


def test_who_was_asleep_blames_nobody() -> None:
    roll = running(3)
    roll.forgive(20.0)
    assert lost(roll, NOW_S + 20) == {}
    assert decide(roll, NOW_S + 20, everyone) is None


CHANGES: list[Callable[[WorkerState], None]] = [
    lambda w: setattr(w, "cut", True),
    lambda w: setattr(w, "exit", "gone"),
    lambda w: setattr(w, "heard_s", NOW_S - 30),
    lambda w: w.come(WaitingForAssignment(7, 40, "border"), NOW_S),
    lambda w: w.come(WaitingForAssignment(7, 40, "failed"), NOW_S),
    lambda w: setattr(w, "outcome", "stopped"),
    lambda w: setattr(w, "dismissed", True),
]


@given(st.dictionaries(st.integers(0, 3), st.sampled_from(CHANGES)), st.integers(1, 6), st.floats(0, 100))
def test_decisions_never_fail_and_change_nothing(
    changes: dict[int, Callable[[WorkerState], None]], wanted: int, later_s: float
) -> None:
    roll = running(4, wanted=wanted)
    for rank, change in changes.items():
        change(roll.workers[f"w{rank}"])
    before = repr(roll)
    losses = find_losses(roll, NOW_S + later_s)
    assert {loss.worker for loss in losses} <= roll.workers.keys()
    decide(roll, NOW_S + later_s, everyone)
    staff(roll, NOW_S + later_s)
    assert repr(roll) == before


def heard(roll: MembershipState, now_s: float) -> None:
    """All beat, and none of them gets on."""
    for worker in roll.workers.values():
        worker.heard_s = now_s


def come(roll: MembershipState, *names: str) -> None:
    for name in names:
        roll.workers[name].come(WaitingForAssignment(7, 40, "border"), NOW_S)
