"""What is written of jobs, in both databases: submits, pages, changes, shares and the lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.control.plane.world import submission
from windlass.control.plane.job_store import JobStore, QueuePosition, open_plane
from windlass.control.plane.leader_lease import STALE_S, DatabaseLease, LostLeadership, leader
from windlass.control.plane.leader_store import FencedLeaderStore, Transition
from windlass.control.plane.queued_job import JobEntry
from windlass.control.scheduler.snapshot import QuotaLimit, TenantQuota
from windlass.spec.errors import BadInput, InUse, NotFound
from windlass.store.database import Database


@pytest.fixture
def database(state_url: str) -> Iterator[Database]:
    opened = open_plane(state_url)
    yield opened
    opened.close()


@pytest.fixture
def records(database: Database) -> JobStore:
    times = iter(range(1000, 9000))
    return JobStore(database, clock=lambda: float(next(times)))


def led(records: JobStore) -> FencedLeaderStore:
    lease = DatabaseLease(records.database, "me")
    assert lease.step(0.0)
    return FencedLeaderStore(records, lambda: lease.epoch)


def moved(ledger: FencedLeaderStore, entry: JobEntry, phase: str) -> JobEntry:
    after = entry.now(phase, "because", 5000.0)  # type: ignore[arg-type]
    ledger.apply([Transition(after, 5000.0, f"is {phase}")])
    return after


def test_what_was_submitted_is_found_as_it_was(records: JobStore) -> None:
    asked = submission("poems", work=2, priority=3)
    entry, new = records.submit(asked)
    assert new
    found = records.find("poems", "default")
    assert found == entry == records.find(entry.uid)
    assert (found.text, found.need, found.priority, found.phase) == (asked.text, asked.need, 3, "queued")
    assert [event.what for event in records.events(entry.uid)] == ["entered the queue"]


def test_a_name_is_free_again_once_its_job_is_over(records: JobStore) -> None:
    ledger = led(records)
    first, _ = records.submit(submission("poems"))
    with pytest.raises(InUse, match="default/poems already exists and is queued"):
        records.submit(submission("poems"))
    moved(ledger, first, "done")
    second, _ = records.submit(submission("poems"))
    assert second.uid != first.uid
    assert records.find("poems", "default").uid == second.uid
    assert first.group != second.group


def test_a_request_that_is_repeated_makes_one_job(records: JobStore) -> None:
    asked = replace(submission("poems"), token="t1", digest="d")
    first, new = records.submit(asked)
    again, newer = records.submit(asked)
    assert (new, newer, again.uid) == (True, False, first.uid)
    with pytest.raises(BadInput, match="a different request"):
        records.submit(replace(asked, name="songs", digest="other"))


def test_pages_hold_every_job_once(records: JobStore) -> None:
    for number in range(7):
        records.submit(submission(f"j{number}", tenant="ada" if number % 2 else "bob"))
    seen: list[str] = []
    after = None
    while page := records.list(limit=3, after=after):
        seen += [entry.name for entry in page]
        after = (page[-1].submitted_s, page[-1].uid)
    assert seen == [f"j{number}" for number in range(7)]
    assert [entry.name for entry in records.list(tenant="ada")] == ["j1", "j3", "j5"]
    assert records.counts("bob") == {"queued": 4}


def test_an_owner_changes_the_desired_state_and_the_leader_phases_without_loss(records: JobStore) -> None:
    ledger = led(records)
    entry, _ = records.submit(submission("poems"))
    records.set_priority(entry.uid, 7, "ada")
    moved(ledger, entry, "admitted")  # written by one who has not read the new priority
    found = records.stop(entry.uid, "ada")
    assert (found.phase, found.priority, found.desired) == ("admitted", 7, "stop")
    moved(ledger, found, "stopped")
    assert records.set_priority(entry.uid, 1, "ada").priority == 7, "one that is over stays as it is"


def test_who_knows_all_up_to_a_version_reads_only_what_came_after_it(records: JobStore) -> None:
    ledger = led(records)
    first, _ = records.submit(submission("a"))
    records.submit(submission("b"))
    known = max(entry.version for entry in ledger.changed(0))
    assert ledger.changed(known) == []
    moved(ledger, first, "done")
    assert [entry.name for entry in ledger.changed(known)] == ["a"]
    assert [entry.name for entry in ledger.changed(0)] == ["b"]


def test_what_is_not_there_is_said_with_the_nearest(records: JobStore) -> None:
    records.submit(submission("poems"))
    with pytest.raises(NotFound, match="did you mean 'poems'"):
        records.find("poem", "default")
    with pytest.raises(NotFound):
        records.find("poems", "ada")


def test_shares_and_waits_are_kept(records: JobStore) -> None:
    ledger = led(records)
    records.set_share(TenantQuota("ada", 2.0, QuotaLimit(cores=8.0, gpus=0), max_jobs=4))
    ledger.set_usage({"ada": 3.5, "bob": 1.0}, 10.0)
    assert records.shares() == {
        "ada": TenantQuota("ada", 2.0, QuotaLimit(cores=8.0, gpus=0), max_jobs=4, used=3.5),
        "bob": TenantQuota("bob", used=1.0),
    }
    ledger.set_queue_positions({"u1": QueuePosition(1, "no room"), "u2": QueuePosition(2, "quota")})
    ledger.set_queue_positions({"u1": None})
    assert records.waits(["u1", "u2"]) == {"u2": QueuePosition(2, "quota")}


def test_one_leads_and_another_takes_over_when_it_is_silent(database: Database) -> None:
    one, two = DatabaseLease(database, "one", "here"), DatabaseLease(database, "two", "there")
    assert one.step(0.0)
    assert not two.step(0.0)
    assert one.step(1.5)
    assert not two.step(STALE_S + 0.5), "it was heard of since"
    assert two.step(2 * STALE_S + 1.0)
    assert leader(database) == (2, "two", "there")
    assert not one.step(9.0)
    assert not one.holds(9.0)


def test_a_clock_that_is_wrong_takes_no_lease(database: Database) -> None:
    one, two = DatabaseLease(database, "one"), DatabaseLease(database, "two")
    assert one.step(5.0)
    assert not two.step(1e9), "what counts is how long it has seen nothing new"


def test_who_resigns_is_followed_at_once(database: Database) -> None:
    one, two = DatabaseLease(database, "one"), DatabaseLease(database, "two")
    one.step(0.0)
    two.step(0.0)
    one.resign(0.0)
    assert two.step(0.1)


def test_a_write_of_an_epoch_that_has_passed_is_undone(records: JobStore) -> None:
    one, two = DatabaseLease(records.database, "one"), DatabaseLease(records.database, "two")
    one.step(0.0)
    entry, _ = records.submit(submission("poems"))
    ledger = FencedLeaderStore(records, lambda: one.epoch)
    two.step(0.0)
    assert two.step(STALE_S + 1.0)
    with pytest.raises(LostLeadership, match="epoch 2 leads"):
        moved(ledger, entry, "admitted")
    with pytest.raises(LostLeadership):
        ledger.set_queue_positions({entry.uid: QueuePosition(1, "x")})
    assert records.find("poems", "default").phase == "queued"
    assert not one.holds(STALE_S + 1.0)
