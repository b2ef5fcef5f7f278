import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.lab.chaos.experiment import Experiment, Strike
from windlass.lab.chaos.injected_fault import InjectedFault
from windlass.lab.chaos.measure import (
    Absence,
    FaultResponse,
    MeasuredCapacity,
    absences,
    answer_to,
    delays,
    num_workers,
    percentile,
    positions,
    possible,
    span,
)
from windlass.lab.chaos.schedule import ScheduledFault
from windlass.lab.chaos.watch import SeenRecord

CAPACITY = MeasuredCapacity({1: 10.0, 2: 18.0, 3: 24.0, 4: 28.0}, delayed=0.5)


def strike(kind: str, at_s: float, *workers: str, healed_s: float | None = None, **fault: object) -> Strike:
    made = InjectedFault(workers, **fault)  # type: ignore[arg-type]
    return Strike(ScheduledFault(at_s, kind, 7.0, 1), made, at_s, generation=3, epoch=2, healed_s=healed_s)


def seen(at_s: float, event: str, **facts: object) -> SeenRecord:
    return SeenRecord(at_s, {"event": event, **facts})


def test_a_kill_is_detected_when_the_loss_is_written_and_over_when_later_steps_are() -> None:
    journal = [
        seen(9.0, "lost", worker="b"),
        seen(10.2, "lost", worker="a"),
        seen(10.3, "ledger", generation=3, samples=[0, 8]),
        seen(11.5, "ledger", generation=4, samples=[8, 16]),
    ]
    assert answer_to(strike("kill", 10.0, "a", lasts=False), journal) == FaultResponse(
        pytest.approx(0.2), pytest.approx(1.5)
    )


def test_a_blackout_is_detected_when_the_last_loss_is_written() -> None:
    journal = [seen(10.1, "lost", worker="a"), seen(10.4, "lost", worker="b")]
    answer = answer_to(strike("blackout", 10.0, "a", "b", lasts=False), journal)
    assert answer == FaultResponse(pytest.approx(0.4), None)


def test_a_loss_without_a_record_is_not_detected() -> None:
    journal = [seen(10.1, "lost", worker="a")]
    assert answer_to(strike("blackout", 10.0, "a", "b"), journal).detection_s is None


def test_a_coordinator_is_replaced_by_one_of_a_later_epoch() -> None:
    journal = [seen(10.1, "coordinator", epoch=2), seen(11.0, "coordinator", epoch=3)]
    answer = answer_to(strike("coordinator", 10.0, lasts=False, interrupts=False), journal)
    assert answer == FaultResponse(1.0, 1.0)


def test_a_full_disk_has_to_be_neither_detected_nor_recovered_from() -> None:
    journal = [seen(11.0, "ledger", generation=4, samples=[0, 8])]
    assert answer_to(strike("disk", 10.0, interrupts=False), journal) == FaultResponse(None, None)


def test_a_worker_is_missed_until_another_joined_or_it_healed() -> None:
    experiment = Experiment(0.0, 100.0)
    experiment.strikes = [
        strike("kill", 10.0, "a", lasts=False),
        strike("freeze", 20.0, "b", healed_s=27.0),
        strike("freeze", 40.0, "c", healed_s=48.0),
        strike("slow", 60.0, "d", healed_s=65.0, share_left=0.4),
        strike("kill", 90.0, "e", lasts=False),
    ]
    joined = [seen(11.0, "joined"), seen(42.0, "joined"), seen(61.0, "joined")]
    assert absences(experiment, joined) == [
        Absence(10.0, 11.0),
        Absence(20.0, 27.0),
        Absence(40.0, 42.0),
        Absence(60.0, 65.0, pytest.approx(0.6)),
        Absence(90.0, 100.0),
    ]


def test_what_workers_could_do_is_the_integral_of_their_capacity() -> None:
    missing = [Absence(10.0, 20.0), Absence(15.0, 30.0), Absence(50.0, 60.0, 0.5)]
    found = possible(missing, [], CAPACITY, workers=4, spares=0, from_s=0.0, until_s=100.0)
    expected = 5 * 24 + 5 * 18 + 10 * 24 + 10 * 26 + 70 * 28
    assert found == pytest.approx(expected)


def test_a_spare_makes_up_for_one_who_is_missing() -> None:
    missing = [Absence(10.0, 20.0), Absence(12.0, 14.0)]
    found = possible(missing, [], CAPACITY, workers=4, spares=1, from_s=0.0, until_s=100.0)
    assert found == pytest.approx(98 * 28 + 2 * 24)


def test_no_more_is_possible_over_a_slow_network_than_was_measured_over_one() -> None:
    experiment = Experiment(0.0, 100.0)
    experiment.strikes = [strike("delay", 10.0, healed_s=20.0, interrupts=False)]
    slow = delays(experiment)
    found = possible([Absence(15.0, 30.0)], slow, CAPACITY, workers=4, spares=0, from_s=0.0, until_s=100.0)
    assert found == pytest.approx(80 * 28 + 5 * 14 + 5 * 12 + 10 * 24)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50), st.floats(0, 1)), max_size=8))
def test_who_is_missing_never_adds_to_what_is_possible(missing: list[tuple[float, float, float]]) -> None:
    away = [Absence(begin, begin + length, share) for begin, length, share in missing]
    found = possible(away, [], CAPACITY, workers=4, spares=0, from_s=0.0, until_s=100.0)
    assert -1e-6 <= found <= 2800 + 1e-6


def test_the_rate_between_whole_workers_is_a_line_and_of_none_is_nothing() -> None:
    assert [CAPACITY.rate(n) for n in (-0.5, 0, 0.5, 1, 3.5, 4)] == [0.0, 0.0, 5.0, 10.0, 26.0, 28.0]


def test_a_company_counts_once_it_took_steps() -> None:
    first = [seen(0.5, "joined"), seen(0.6, "joined"), seen(1.0, "generation", generation=1)]
    stepped = [*first, seen(2.0, "ledger", generation=1)]
    left = [*stepped, seen(3.0, "left"), seen(3.0, "generation", generation=2)]
    assert [num_workers(journal) for journal in ([], first, stepped, left)] == [0, 0, 2, 0]
    assert num_workers([*left, seen(4.0, "ledger", generation=2)]) == 1


def test_a_roll_back_takes_samples_back() -> None:
    journal = [
        seen(1.0, "ledger", samples=[0, 80]),
        seen(2.0, "ledger", samples=[80, 160]),
        seen(3.0, "settled", samples=120),
        seen(4.0, "ledger", samples=[120, 200]),
    ]
    found = positions(journal)
    assert [position.samples for position in found] == [80, 160, 120, 200]
    first, last = span(found, 1.5, 2.5)
    assert (first.samples, last.samples) == (80, 120)


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_least_value_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert found in values


def test_a_percentile_of_nothing_is_no_number() -> None:
    assert math.isnan(percentile([], 0.5))
