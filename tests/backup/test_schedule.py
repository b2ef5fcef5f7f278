"""A schedule that outlives failures and tells how it goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.backup import schedule as scheduling
from windlass.backup.make import BackupOptions
from windlass.backup.repository import BackupRepository
from windlass.backup.schedule import HELP, LOOK_EVERY_S, BackupSchedule, exposition
from windlass.backup.snapshot import moment
from windlass.spec.backup import Keep
from windlass.spec.errors import StoreFailed
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

HOUR_S = 3600.0


@pytest.fixture
def schedule(home: Path, opened: Callable[..., BackupRepository]) -> BackupSchedule:
    return BackupSchedule(home, opened, HOUR_S, Keep(last=2, daily=0, weekly=0, monthly=0), BackupOptions())


def events(home: Path) -> list[str]:
    return [record["event"] for record in Journal(StoreDir(home / "backup")).read()]


def test_the_first_is_made_at_once_and_the_next_when_it_is_due(
    home: Path, schedule: BackupSchedule, repository: BackupRepository
) -> None:
    assert schedule.step(1e9) <= LOOK_EVERY_S
    (first,) = repository.ids()
    schedule.step(moment(first) + HOUR_S - 10)
    assert len(repository.ids()) == 1
    schedule.step(moment(first) + HOUR_S + 1)
    assert len(repository.ids()) == 2
    assert events(home) == ["made", "made"]


def test_one_that_was_started_again_goes_by_what_is_in_the_store(
    schedule: BackupSchedule, repository: BackupRepository
) -> None:
    schedule.step(1e9)
    again = BackupSchedule(schedule.home, schedule.open_repository, HOUR_S, schedule.keep, BackupOptions())
    again.step(moment(repository.ids()[0]) + 60)
    assert len(repository.ids()) == 1


def test_old_ones_are_forgotten(schedule: BackupSchedule, repository: BackupRepository) -> None:
    for _ in range(4):
        ids = repository.ids()
        schedule.step(moment(ids[-1]) + HOUR_S + 1 if ids else 1e9)
    assert len(repository.ids()) == 2


def test_a_failure_is_reported_and_tried_again_later(
    home: Path, schedule: BackupSchedule, repository: BackupRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = scheduling.make

    def failing(*_: object) -> None:
        raise StoreFailed("the store is away")

    monkeypatch.setattr(scheduling, "make", failing)
    first = schedule.step(1e9)
    second = schedule.step(1e9 + first + 1)
    assert first > 0
    assert second > 0
    assert schedule.figures["failing"] == 2
    schedule.step(1e9 + first + 2)  # not before it is time
    assert events(home) == ["failed", "failed"]
    monkeypatch.setattr(scheduling, "make", make)
    schedule.step(2e9)
    assert (schedule.figures["failing"], schedule.figures["failures_total"]) == (0, 2)
    assert len(repository.ids()) == 1


def test_between_snapshots_it_says_when_the_home_changed(
    home: Path, schedule: BackupSchedule, repository: BackupRepository
) -> None:
    schedule.step(1e9)
    (home / "runs" / "poems" / "1" / "notes").write_text("later")
    newest = (home / "runs" / "poems" / "1" / "notes").stat().st_mtime
    schedule.step(moment(repository.ids()[0]) + 60)
    assert repository.seen()["newest_write_s"] == pytest.approx(newest, abs=0.1)
    assert repository.seen()["every_s"] == HOUR_S


def test_figures_are_written_as_prometheus_reads_them(home: Path, schedule: BackupSchedule) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    schedule.step(1e9)
    text = (home / "backup" / "metrics.prom").read_text()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["windlass_backup_made_total"] == 1
    assert found["windlass_backup_last_success_timestamp_seconds"] > 1e9
    assert len(found) == len(HELP)
    assert exposition(schedule.figures).endswith("\n")
