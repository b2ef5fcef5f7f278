"""Snapshots go by age, chunks when none lists them, and never under anybody who relies on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.backup import locks
from windlass.backup.locks import claimed, others, pruning
from windlass.backup.make import make
from windlass.backup.prune import kept, prune
from windlass.backup.repository import BackupRepository
from windlass.backup.restore import restore
from windlass.backup.snapshot import moment, stamp
from windlass.spec.backup import Keep
from windlass.spec.errors import Damaged, InUse

DAY_S = 86400.0
ONE = Keep(last=1, daily=0, weekly=0, monthly=0)

moments = st.lists(st.floats(0, 3e9), min_size=1, max_size=60)
policies = st.builds(
    Keep,
    last=st.integers(1, 5),
    daily=st.integers(0, 5),
    weekly=st.integers(0, 5),
    monthly=st.integers(0, 5),
)


@given(moments, policies)
def test_the_newest_stays_and_no_more_than_requested(times: list[float], keep: Keep) -> None:
    stays = kept(times, keep)
    assert max(times) in stays
    assert stays <= set(times)
    assert len(stays) <= keep.last + keep.daily + keep.weekly + keep.monthly
    assert kept(stays, keep) == stays  # what stayed once stays until something newer comes


def test_a_snapshot_a_day_is_thinned_out_to_weeks_and_months() -> None:
    times = [day * DAY_S + 100 for day in range(20_000, 20_400)]
    stays = sorted(kept(times, Keep(last=2, daily=7, weekly=4, monthly=6)), reverse=True)
    assert stays[:7] == times[-1:-8:-1]
    assert 13 <= len(stays) <= 17
    assert stays[-1] < times[-1] - 120 * DAY_S


@given(st.floats(0, 4e9))
def test_the_name_of_a_snapshot_reports_its_moment(seconds: float) -> None:
    assert moment(f"{stamp(seconds)}-{'0' * 16}") == pytest.approx(seconds, abs=1e-5)


def test_what_only_a_forgotten_snapshot_held_goes_away(
    home: Path, repository: BackupRepository, tmp_path: Path
) -> None:
    extra = home / "runs" / "poems" / "1" / "extra"
    extra.write_bytes(os.urandom(100_000))
    make(home, repository)
    extra.unlink()
    second = make(home, repository).snapshot
    assert prune(repository, ONE, dry_run=True).forgotten
    assert len(repository.ids()) == 2
    gone = prune(repository, ONE)
    assert (gone.kept, gone.waits) == ((second.id,), False)
    assert gone.freed_bytes >= 100_000
    assert set(repository.chunks()) == second.chunks
    restore(repository, tmp_path / "other")


def test_chunks_without_a_snapshot_go_away(home: Path, repository: BackupRepository) -> None:
    make(home, repository)
    repository.put(repository.name(b"its writer died"), b"its writer died")
    assert prune(repository, Keep()).chunks == 1


def test_nothing_is_swept_while_a_backup_is_under_way(home: Path, repository: BackupRepository) -> None:
    make(home, repository)
    repository.put(repository.name(b"under way"), b"under way")
    with claimed(repository.place, "make"):
        gone = prune(repository, Keep())
        assert (gone.chunks, gone.waits) == (0, True)
        assert repository.name(b"under way") in repository.chunks()
    assert prune(repository, Keep()).chunks == 1


def test_a_backup_waits_while_another_sweeps(
    repository: BackupRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LOOK_AGAIN_S", 0.01)
    with (
        pruning(repository.place) as is_alone,
        pytest.raises(InUse, match="is being pruned"),
        claimed(repository.place, "make", patience_s=0.05),
    ):
        pass
    assert is_alone
    assert repository.place.names("claims") == []


def test_a_claim_that_ran_out_counts_no_more(repository: BackupRepository) -> None:
    with claimed(repository.place, "make") as claim:
        (name,) = repository.place.names("claims")
        assert others(repository.place, ("make",)) == [name]
        until = json.loads(repository.place.read(claim.name))["until_s"]
        assert others(repository.place, ("make",), until + locks.SKEW_S - 1) == [name]
        assert others(repository.place, ("make",), until + locks.SKEW_S + 1) == []


def test_a_claim_of_a_process_that_died_here_counts_no_more(repository: BackupRepository) -> None:
    script = (
        "import os, sys; from windlass.backup.locks import BackupLock\n"
        "from windlass.store.store_dir import StoreDir\n"
        "BackupLock(StoreDir(sys.argv[1]), 'make').renew(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", script, repository.place.url], check=False, timeout=60)
    assert len(repository.place.names("claims")) == 1
    assert others(repository.place, ("make",)) == []


def test_a_backup_that_slept_too_long_looks_again(
    home: Path, repository: BackupRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Frozen before its snapshot is written, while others take its chunks away as garbage."""
    from windlass.backup.uploader import Sender

    finish, frozen = Sender.finish, iter([True])

    def freeze(self: Sender) -> None:
        finish(self)
        if next(frozen, False):
            repository.drop(repository.chunks())

    monkeypatch.setattr(Sender, "finish", freeze)
    make(home, repository)
    restore(repository, tmp_path / "other")


def test_a_snapshot_that_cannot_be_read_stops_the_sweep(home: Path, repository: BackupRepository) -> None:
    id_ = make(home, repository).snapshot.id
    before = repository.chunks()
    repository.place.write(f"snapshots/{id_}", b"\x00nonsense")
    with pytest.raises(Damaged):
        prune(repository, Keep())
    assert repository.chunks() == before


@pytest.mark.slow
def test_a_prune_in_the_midst_of_makes_breaks_no_snapshot(
    home: Path, opened: Callable[..., BackupRepository], tmp_path: Path
) -> None:
    import threading

    ended = threading.Event()

    def sweep() -> None:
        while not ended.is_set():
            prune(opened(), ONE)
            time.sleep(0.001)

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        for number in range(6):
            (home / "runs" / "poems" / "1" / "notes").write_bytes(os.urandom(5000) * (number + 1))
            snapshot = make(home, opened()).snapshot
            assert snapshot.chunks <= set(opened().chunks())
    finally:
        ended.set()
        thread.join()
    restore(opened(), tmp_path / "other")
