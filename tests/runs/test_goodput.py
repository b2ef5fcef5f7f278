"""Every second of a run is somewhere, whatever the clocks say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.runs.goodput import KINDS, MEANINGS, goodput

Record = dict[str, Any]


def ledger(time: float, first: int, last: int, generation: int = 1, **spent: float) -> Record:
    return {
        "event": "ledger",
        "time": time,
        "generation": generation,
        "steps": [first, last],
        "samples": [first, last],
        "digest": 0,
        "spent": spent,
    }


def record(event: str, time: float, **facts: Any) -> Record:
    return {"event": event, "time": time, **facts}


def seconds_of(*records: Record) -> dict[str, float]:
    """Return the kinds that took time."""
    return {kind: seconds for kind, seconds in goodput(records).seconds.items() if seconds > 1e-9}


BEGUN = (record("started", 100.0), record("settled", 102.0, step=0, samples=0))


def test_what_was_measured_is_booked_as_measured_and_the_rest_is_other() -> None:
    found = seconds_of(*BEGUN, ledger(112.0, 0, 9, compute=6.0, communication=2.0, data=1.0, checkpoint=0.5))
    assert found == pytest.approx(
        {"compute": 6.0, "communication": 2.0, "data": 1.0, "checkpoint": 0.5, "start": 2.0, "other": 0.5}
    )


def test_a_loss_costs_recovery_from_the_silence_before_it_was_seen_until_steps_continue() -> None:
    found = seconds_of(
        *BEGUN,
        ledger(112.0, 0, 9, compute=10.0),
        record("lost", 113.0, rank=2, generation=1, silent_s=0.4),
        record("generation", 113.1, generation=2),
        ledger(113.2, 9, 10, compute=0.6),  # another worker writes what the lost one did not
        record("settled", 115.0, step=10, samples=10),
        ledger(120.0, 10, 14, generation=2, compute=5.0),
    )
    assert found == pytest.approx({"compute": 15.6, "recovery": 2.4, "start": 2.0})


def test_a_lost_spare_stops_nothing() -> None:
    found = seconds_of(
        *BEGUN, record("lost", 105.0, rank=None, generation=1), ledger(112.0, 0, 9, compute=10.0)
    )
    assert found == pytest.approx({"compute": 10.0, "start": 2.0})


def test_waiting_and_pauses_are_idle_and_not_counted_twice() -> None:
    found = seconds_of(
        *BEGUN,
        record("paused", 103.0),
        record("unpaused", 133.0),
        ledger(135.0, 0, 2, compute=3.0, control=30.0),
        record("lost", 136.0, rank=0, generation=1),
        record("waiting", 137.0),
        record("generation", 237.0, generation=2),
        record("settled", 238.0, step=2, samples=2),
    )
    assert found == pytest.approx(
        {"compute": 3.0, "idle": 130.0, "recovery": 2.0, "start": 2.0, "other": 1.0}
    )


def test_a_stopped_run_is_offline_until_it_is_started_again() -> None:
    found = seconds_of(
        *BEGUN,
        ledger(112.0, 0, 9, compute=10.0),
        record("stopped", 112.0),
        record("verified", 500.0),
        record("started", 3712.0),
        record("resumed", 3713.0, step=9),
        ledger(3723.0, 9, 18, compute=10.0),
        record("finished", 3723.0),
    )
    assert found == pytest.approx({"compute": 20.0, "offline": 3600.0, "start": 3.0})


def test_a_run_whose_machine_was_switched_off_was_offline_too() -> None:
    found = seconds_of(
        *BEGUN,
        ledger(112.0, 0, 9, compute=10.0),
        record("started", 9112.0),
        record("resumed", 9113.0, step=9),
    )
    assert found == pytest.approx({"compute": 10.0, "offline": 9000.0, "start": 3.0})


def test_a_restart_by_the_launcher_is_recovery() -> None:
    found = seconds_of(
        record("started", 100.0),
        ledger(110.0, 0, 10, generation=0, compute=9.0),
        record("restarted", 111.0),
        record("started", 114.0),
        record("resumed", 115.0, step=10),
        ledger(120.0, 10, 15, generation=0, compute=5.0),
    )
    assert found == pytest.approx({"compute": 14.0, "recovery": 4.0, "start": 1.0, "other": 1.0})


def test_computing_that_was_rolled_back_does_not_count() -> None:
    found = seconds_of(*BEGUN, ledger(112.0, 0, 10, compute=10.0), record("resumed", 112.0, step=4))
    assert found == pytest.approx({"compute": 4.0, "undone": 6.0, "start": 2.0})


def test_a_start_without_a_checkpoint_undoes_everything() -> None:
    found = seconds_of(
        *BEGUN, ledger(112.0, 0, 10, compute=10.0), record("started", 112.0), ledger(113.0, 0, 1, compute=1.0)
    )
    assert found == pytest.approx({"compute": 1.0, "undone": 10.0, "start": 2.0})


@pytest.mark.parametrize("jump", [-7200.0, -70.0, 7200.0])
def test_a_clock_that_is_set_moves_no_time(jump: float) -> None:
    found = goodput(
        [
            *BEGUN,
            ledger(112.0, 0, 10, compute=10.0),
            ledger(122.0 + jump, 10, 20, compute=10.0),
            ledger(132.0 + jump, 20, 30, compute=10.0),
        ]
    )
    assert found.seconds["compute"] == 30.0
    assert found.total_s <= 62.0


def test_two_clocks_that_differ_a_little_do_not_add_up() -> None:
    records = [*BEGUN]
    for n in range(100):
        records.append(ledger(103.0 + n, n, n + 1, compute=1.0))
        records.append(record("joined", 103.0 + n + 20))
    assert goodput(records).total_s == pytest.approx(102.0, abs=21)


def test_a_clock_that_is_an_hour_ahead_during_a_recovery_costs_what_it_took() -> None:
    """As it happened: the coordinator's clock jumped while a generation was formed, rank 0's was right."""
    found = seconds_of(
        *BEGUN,
        ledger(112.0, 0, 10, compute=10.0),
        record("lost", 3712.5, rank=2, generation=1, silent_s=0.2),
        record("checkpoint", 112.7, step=9),
        record("generation", 3713.6, generation=2),
        record("settled", 114.0, step=10, samples=10),
        ledger(115.0, 10, 11, generation=2, compute=1.0),
    )
    assert found["recovery"] == pytest.approx(2.0, abs=0.2)
    assert sum(found.values()) == pytest.approx(15.0, abs=0.2)


def test_a_journal_without_a_ledger_has_unmeasured_time() -> None:
    found = goodput(
        [record("started", 0.0), record("step", 50.0), record("step", 950.0), record("finished", 1000.0)]
    )
    assert (found.measured, found.total_s, found.seconds["other"]) == (False, 1000.0, 950.0)


events = st.sampled_from(
    ["started", "resumed", "settled", "ledger", "lost", "generation", "waiting", "paused", "unpaused",
     "stopped", "finished", "coordinator", "joined", "checkpoint", "restarted", "step"]
)  # fmt: skip


@given(st.lists(st.tuples(events, st.floats(-1e5, 1e5), st.integers(0, 50)), max_size=40))
def test_shares_add_up_to_one_and_none_is_negative(happened: list[tuple[str, float, int]]) -> None:
    records = [
        ledger(time, step, step + 2, compute=1.0, control=0.5)
        if event == "ledger"
        else record(event, time, step=step, generation=step, rank=0, silent_s=0.3)
        for event, time, step in happened
    ]
    found = goodput(records)
    assert min(found.seconds.values()) >= -1e-9
    assert sum(found.shares.values()) == pytest.approx(1.0 if found.total_s > 0 else 0.0)
    assert 0 <= found.goodput <= 1 + 1e-9
    assert set(found.facts()["seconds"]) == set(KINDS) == set(MEANINGS)
