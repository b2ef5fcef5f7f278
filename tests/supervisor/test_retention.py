"""Old records of the audit log leave once a day, and the rest still verifies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.serve.records.audit_log import Act, Actor, read_records, write_down
from windlass.serve.records.audit_verify import verify
from windlass.serve.records.state import open_state
from windlass.spec.privacy import DAY_S
from windlass.store.database import Database, sqlite_url
from windlass.supervisor.desired import DesiredService
from windlass.supervisor.retention import Retention
from windlass.supervisor.state import Patch, ServiceState

NOW_S = 1_800_000_000.0
VIEW = ServiceState(DesiredService(()))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Database]:
    database = open_state(sqlite_url(tmp_path / "service.db"))
    for days in (40, 20, 1):
        write_down(database, Actor("", "ada"), Act("test", f"{days} days old"), now_s=NOW_S - days * DAY_S)
    yield database
    database.close()


def targets(state: Database) -> list[str]:
    return [record.target for record in read_records(state)]


def test_records_older_than_wanted_are_folded_once_a_day(state: Database) -> None:
    wall = [NOW_S]
    retention = Retention(state, keep_audit_s=30 * DAY_S, clock=lambda: wall[0])
    assert retention.decide(VIEW, 0.0) == Patch()
    retention.close()
    assert targets(state) == ["20 days old", "1 days old", "1-1"]
    wall[0] += 15 * DAY_S
    retention.decide(VIEW, DAY_S - 1)
    retention.close()
    assert len(targets(state)) == 3
    retention.decide(VIEW, DAY_S)
    retention.close()
    assert targets(state) == ["1 days old", "1-1", "2-2"]
    assert verify(state).ok


def test_nothing_leaves_unless_the_operator_says_so(state: Database) -> None:
    retention = Retention(state, keep_audit_s=None)
    retention.decide(VIEW, 0.0)
    retention.close()
    assert len(targets(state)) == 3


def test_a_damaged_log_is_left_as_it_is_and_reported(
    state: Database, caplog: pytest.LogCaptureFixture
) -> None:
    state.write("UPDATE audit SET who = 'eve' WHERE number = 1")
    retention = Retention(state, keep_audit_s=DAY_S, clock=lambda: NOW_S)
    retention.decide(VIEW, 0.0)
    retention.close()
    assert len(targets(state)) == 3
    assert "record 1 was changed" in caplog.text
