"""What every lease promises, in files and in a database: one algorithm over two stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windlass.control.plane.job_store import open_plane
from windlass.control.plane.leader_lease import DatabaseLease
from windlass.store.database import sqlite_url
from windlass.store.lease import Lease, LeaseCandidate
from windlass.store.store_dir import StoreDir

BEAT_S, STALE_S = 0.5, 2.0
"""Both kinds send a heartbeat within the first, and are stale after the second."""
NewCandidate = Callable[[str], LeaseCandidate]


@pytest.fixture(params=["files", "database"])
def candidate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewCandidate]:
    if request.param == "files":
        place = StoreDir(tmp_path / "lease")
        yield lambda holder: Lease(place, holder, "")
        return
    database = open_plane(sqlite_url(tmp_path / "control.db"))
    yield lambda holder: DatabaseLease(database, holder)
    database.close()


def test_the_first_candidate_leads_at_once_and_no_second_one_does(candidate: NewCandidate) -> None:
    one, two = candidate("one"), candidate("two")
    for number in range(20):
        assert one.step(number * BEAT_S)
        assert not two.step(1e6 + number * BEAT_S), "clocks are not compared"
    assert (one.epoch, two.epoch) == (1, None)


def test_a_silent_leader_is_followed_by_the_next_epoch_and_finds_out(candidate: NewCandidate) -> None:
    one, two = candidate("one"), candidate("two")
    one.step(0.0)
    assert not two.step(100.0), "it has seen nothing stand still yet"
    assert two.step(100.0 + STALE_S)
    assert two.epoch == 2
    assert one.holds(0.0)
    assert not one.step(BEAT_S)
    assert not one.holds(BEAT_S)


def test_a_claim_of_what_another_has_claimed_since_fails(candidate: NewCandidate) -> None:
    one, two = candidate("one"), candidate("two")
    seen = one._read()
    assert one._claim(seen) == 1
    assert two._claim(seen) is None


def test_who_resigns_is_followed_at_once(candidate: NewCandidate) -> None:
    one, two = candidate("one"), candidate("two")
    one.step(0.0)
    two.step(0.0)
    one.resign(0.1)
    assert one.epoch is None
    assert two.step(BEAT_S)
    assert two.epoch == 2


def test_a_leader_holds_its_lease_until_its_last_heartbeat_is_stale(candidate: NewCandidate) -> None:
    one = candidate("one")
    assert not one.holds(0.0)
    one.step(0.0)
    assert one.holds(BEAT_S)
    assert not one.holds(STALE_S)
