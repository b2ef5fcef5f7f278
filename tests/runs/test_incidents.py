"""Incidents read as a person would tell them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from windlass.runs.incidents import Incident, incidents
from windlass.spec.layout import Layout

Record = dict[str, Any]
NOON = 1_700_000_000.0


def record(event: str, after_s: float, **facts: Any) -> Record:
    return {"event": event, "time": NOON + after_s, **facts}


def lost(after_s: float, worker: str = "w2", rank: int | None = 2, **facts: Any) -> Record:
    whole = {"node": "a", "generation": 1, "how": "exit", "detail": "was killed by SIGKILL", "silent_s": 0.0}
    return record("lost", after_s, worker=worker, rank=rank, **{**whole, **facts})


def generation(after_s: float, workers: int) -> Record:
    members = [{"worker": f"w{n}", "node": "a", "rank": n} for n in range(workers)]
    layout = Layout(dp=workers).model_dump(mode="json")
    return record("generation", after_s, generation=2, members=members, layout=layout, reason="")


def settled(after_s: float, step: int, source: str = "memory", rolled_back: int = 0) -> Record:
    facts = {"samples": 8 * step, "source": source, "rolled_back": rolled_back, "seconds": 1.0}
    return record("settled", after_s, step=step, **facts)


def ledger(after_s: float, first: int, last: int) -> Record:
    return record("ledger", after_s, steps=[first, last], samples=[8 * first, 8 * last])


def only(*records: Record) -> Incident:
    found = incidents(records)
    assert len(found) == 1, found
    return found[0]


def test_a_killed_worker_from_the_loss_to_the_next_step() -> None:
    found = only(ledger(0, 0, 9), lost(1.0, silent_s=0.2), generation(1.1, 3), settled(2.3, 9))
    assert found.sentence == (
        "2023-11-14 22:13:21 worker w2 (rank 2 on a) was killed by SIGKILL, seen after 0.2 s;"
        " 3 workers went on with dp=3 from memory after 1.5s, no step was lost"
    )
    assert (found.seconds, found.source, found.layout, found.workers) == (1.5, "memory", "dp=3", ("w2",))


def test_work_that_is_rolled_back_is_reported() -> None:
    back = record("resumed", 2.0, step=5, samples=40, source="checkpoint")
    found = only(ledger(0, 0, 9), lost(1.0), generation(1.1, 2), back, settled(2.0, 5, "checkpoint", 4))
    assert found.done == (
        "2 workers went on with dp=2 from a checkpoint after 1.0s,"
        " 4 steps (32 samples) rolled back and done again"
    )
    assert (found.steps_lost, found.samples_redone) == (4, 32)


def test_losses_that_are_recovered_from_together_are_one_incident() -> None:
    found = only(lost(1.0), lost(1.2, "w3", 3, how="silent", detail="no word for 1.0 s", silent_s=1.0),
                 generation(1.3, 2), settled(2.0, 0))  # fmt: skip
    assert found.workers == ("w2", "w3")
    assert found.what.endswith(
        "seen at once and worker w3 (rank 3 on a) fell silent: no word for 1.0 s, seen after 1.0 s"
    )


def test_a_lost_spare_did_not_stop_training() -> None:
    found = only(lost(1.0, rank=None))
    assert found.sentence.endswith(
        "worker w2 (a spare on a) was killed by SIGKILL, seen at once; training did not stop"
    )


def test_a_wait_for_workers_is_reported_with_its_reason() -> None:
    found = only(lost(1.0), record("waiting", 1.1, reason="0 workers left", workers=0), generation(61.0, 1),
                 settled(62.0, 0))  # fmt: skip
    assert found.kind == "loss"
    assert (
        "1 worker went on with one process from memory after 1m 01s, it waited meanwhile: 0 workers left"
        in (found.done)
    )


def test_a_wait_of_its_own_is_an_incident_if_it_is_long() -> None:
    wait = record("waiting", 0.0, reason="1 worker left, and the job needs at least 2", workers=1)
    assert incidents([wait, generation(1.0, 2), settled(1.5, 0)]) == []
    found = only(wait, generation(30.0, 2), settled(31.0, 0))
    assert (found.kind, found.seconds) == ("wait", 31.0)


def test_what_is_not_recovered_from_says_so() -> None:
    assert only(lost(1.0)).sentence.endswith("; not recovered yet")
    assert only(lost(1.0), record("stopped", 2.0)).done == "the run ended before it could go on"


def test_a_coordinator_that_takes_over_in_a_running_run_is_an_incident_and_the_first_is_not() -> None:
    first = record("coordinator", 0.0, epoch=1, node="a", address="", reason="first")
    second = record("coordinator", 9.0, epoch=2, node="b", address="", reason="no word for 1 s")
    found = only(first, generation(1.0, 2), settled(2.0, 0), second)
    assert found.sentence.endswith(
        "the coordinator was lost: no word for 1 s;"
        " the one on b took over as number 2, steps went on meanwhile"
    )
    assert incidents([first, record("over", 3.0, outcome="finished"), second]) == []


def test_a_restart_by_the_launcher_is_reported_with_or_without_a_checkpoint() -> None:
    restart = record("restarted", 1.0, step=0, message="rank 1 was killed by SIGKILL\nmore", restarts_left=2)
    found = only(ledger(0.0, 0, 5), restart, record("resumed", 4.0, step=3, samples=24))
    assert found.what == "rank 1 was killed by SIGKILL"
    assert found.done.startswith("all processes were started again from a checkpoint after 3.0s, 2 steps")
    again = only(ledger(0.0, 0, 5), restart, ledger(5.0, 0, 1))
    assert (again.source, again.steps_lost, again.samples_redone) == ("start", 5, 40)


def test_checkpoints_that_could_not_be_kept_or_used_are_reported() -> None:
    found = incidents(
        [
            record("checkpoint_failed", 1.0, step=40, tier="store", message="no answer"),
            record("verified", 2.0, step=40, ok=False, message="a digest differs", seconds=1.0),
            record("verified", 3.0, step=50, ok=True, message="", seconds=1.0),
            record("warning", 4.0, message="checkpoint skipped: step-40: no manifest"),
            record("warning", 5.0, message="the disk is slow"),
        ]
    )
    assert [incident.kind for incident in found] == ["checkpoint"] * 3
    assert found[0].what == "the checkpoint of step 40 could not be kept in the store: no answer"
    assert found[0].done == "tried once, training went on"


def test_attempts_to_keep_one_checkpoint_are_one_incident() -> None:
    failed = [record("checkpoint_failed", n, step=40, tier="store", message="no answer") for n in (1.0, 2.0)]
    assert only(*failed).done == "tried 2 times, training went on"
    kept = [
        record("checkpoint", 3.0, step=40, tier="local"),
        record("checkpoint", 5.0, step=40, tier="store"),
    ]
    assert only(*failed, *kept).done == "it was kept 4.0s later, at attempt 3; training went on"


def test_a_clock_that_was_set_back_leaves_the_measured_time() -> None:
    assert only(lost(1000.0), generation(1.0, 1), settled(2.0, 0)).seconds == 1.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lost", "generation", "waiting", "resumed", "settled", "ledger", "stopped",
                             "coordinator", "restarted", "over", "started"]),
            st.floats(-1e6, 1e6),
            st.integers(0, 9),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_any_journal_can_be_reported(happened: list[tuple[str, float, int]]) -> None:
    make = {"lost": lambda at, n: lost(at, rank=n or None), "generation": generation, "settled": settled,
            "ledger": lambda at, n: ledger(at, n, n + 1)}  # fmt: skip
    records = [make[e](at, max(1, n)) if e in make else record(e, at, step=n) for e, at, n in happened]
    for incident in incidents(records):
        assert incident.sentence
        assert incident.seconds is None or incident.seconds >= 0
        assert incident.steps_lost >= 0
        assert incident.facts()["sentence"] == incident.sentence
