"""Whose end explains the others'."""

import signal

from hypothesis import given
from hypothesis import strategies as st

from windlass.cluster.launch.exit_status import (
    ALONE_S,
    COLLECT_S,
    LATE_S,
    RUNNING,
    LaunchOutcome,
    RankExit,
    decide,
    error_from,
)
from windlass.spec.errors import BadInput, ProcessFailed

PEER = "RuntimeError: gloo/transport/tcp/pair.cc:553 Connection closed by peer [127.0.0.1]:13705"
BUG = "ZeroDivisionError: division by zero"


def verdict(*endings: RankExit, world: int = 3, now_s: float = 100.0, asked: bool = False) -> LaunchOutcome:
    return decide(endings, world, now_s=now_s, last_event_s=0.0, stop_requested=asked)


def killed(rank: int, at_s: float) -> RankExit:
    return RankExit(rank, -signal.SIGKILL, at_s)


def lost(rank: int, at_s: float) -> RankExit:
    return RankExit(rank, 1, at_s, tail=PEER)


def told(rank: int, at_s: float, message: str, kind: str = "WindlassError") -> RankExit:
    return RankExit(rank, 1, at_s, error={"kind": kind, "message": message, "hint": "a hint"})


def test_ranks_run_while_none_has_ended() -> None:
    assert verdict() == RUNNING


def test_all_ended_well_is_done() -> None:
    assert verdict(*(RankExit(rank, 0, 1.0) for rank in range(3))).state == "done"


def test_ranks_that_saved_and_left_have_stopped() -> None:
    assert verdict(*(RankExit(rank, 130, 1.0) for rank in range(3))).state == "stopped"


def test_the_killed_rank_is_to_blame_though_its_peer_was_seen_first() -> None:
    assert verdict(lost(0, 99.0), killed(1, 99.1)).culprit == killed(1, 99.1)


def test_a_reported_error_is_the_cause_though_a_peer_lost_its_connection_first() -> None:
    culprit = told(2, 99.5, "the loss is nan")
    assert verdict(lost(0, 99.0), lost(1, 99.1), culprit).culprit == culprit


def test_a_reported_loss_of_a_peer_is_only_a_consequence() -> None:
    follows = told(0, 99.0, "rank 0 of 3 did not meet the others at 127.0.0.1:1")
    assert verdict(follows, killed(1, 99.2)).culprit == killed(1, 99.2)


def test_of_two_that_died_of_their_own_the_first_is_to_blame() -> None:
    crash = RankExit(2, 1, 99.0, tail=BUG)
    assert verdict(killed(1, 99.1), crash).culprit == crash


def test_a_bad_end_is_judged_after_a_moment_only() -> None:
    assert verdict(killed(1, 100.0), now_s=100.0 + COLLECT_S / 2) == RUNNING
    assert verdict(killed(1, 100.0), now_s=100.1 + COLLECT_S).state == "failed"


def test_a_lost_peer_is_looked_for_longer() -> None:
    assert verdict(lost(1, 100.0), now_s=100.0 + LATE_S / 2) == RUNNING
    assert verdict(lost(1, 100.0), now_s=100.0 + LATE_S).culprit == lost(1, 100.0)


def test_a_rank_that_left_the_others_is_to_blame_in_the_end() -> None:
    left = RankExit(1, 0, 10.0)
    assert verdict(left, now_s=10.0 + ALONE_S / 2) == RUNNING
    assert verdict(left, now_s=10.0 + ALONE_S).culprit == left
    assert decide([left], 2, now_s=99.0, last_event_s=98.0, stop_requested=False) == RUNNING


def test_a_rank_that_is_stopped_before_it_listens_has_stopped() -> None:
    early = RankExit(0, -signal.SIGTERM, 99.0)
    assert verdict(early, lost(1, 99.1), lost(2, 99.2), asked=True).state == "stopped"
    assert verdict(early, lost(1, 99.1), lost(2, 99.2), asked=False).culprit == early


def test_a_death_after_asking_is_still_a_failure() -> None:
    assert verdict(killed(1, 99.0), lost(0, 99.0), asked=True).culprit == killed(1, 99.0)


ENDINGS = st.lists(
    st.builds(
        RankExit,
        rank=st.integers(0, 7),
        code=st.sampled_from([0, 130, 1, 2, -6, -9, -11, -15]),
        at_s=st.floats(0, 50),
        error=st.none() | st.just({"message": "x"}),
        tail=st.sampled_from(["", PEER, BUG]),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda e: e.rank,
)


@given(ENDINGS, st.booleans())
def test_once_one_has_ended_the_launch_ends_within_bounds(endings: list[RankExit], asked: bool) -> None:
    last = max(e.at_s for e in endings)
    assert (
        decide(endings, 8, now_s=last + ALONE_S + 1, last_event_s=last, stop_requested=asked).state
        != "running"
    )
    if any(not e.good for e in endings) and not asked:
        assert (
            decide(endings, 8, now_s=last + LATE_S + 1, last_event_s=last, stop_requested=asked).state
            == "failed"
        )


@given(ENDINGS)
def test_only_a_failure_has_a_culprit_and_only_one_that_was_there(endings: list[RankExit]) -> None:
    found = decide(endings, 8, now_s=1000.0, last_event_s=0.0, stop_requested=False)
    assert (found.state == "failed") == (found.culprit is not None)
    assert found.culprit is None or found.culprit in endings


def test_an_error_names_its_rank_and_cause() -> None:
    error = error_from(killed(1, 0.0), [], 2, "process.log")
    assert isinstance(error, ProcessFailed)
    assert "rank 1 was killed by SIGKILL" in error.message


def test_a_reported_error_keeps_its_kind_and_hint() -> None:
    ending = told(1, 0.0, "no such corpus", "BadInput")
    error = error_from(ending, [ending], 2, "process.log")
    assert isinstance(error, BadInput)
    assert (error.message, error.hint) == ("rank 1: no such corpus", "a hint")


def test_what_all_ranks_report_is_printed_without_a_rank() -> None:
    both = [told(rank, 0.0, "no such corpus") for rank in range(2)]
    assert error_from(both[0], both, 2, "process.log").message == "no such corpus"
