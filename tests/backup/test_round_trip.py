"""What is backed up comes back, byte for byte, and only what changed is sent."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.backup.make import BackupOptions, make
from windlass.backup.repository import BackupRepository, open_repository
from windlass.backup.restore import loss, restore
from windlass.backup.uploader import CHUNK_BYTES, RateLimit, Sender, UploadCache
from windlass.control.plane.job_store import JobStore, Submission, open_plane
from windlass.control.plane.queued_job import ResourceNeeds
from windlass.lab.chaos.fault_proxy import FaultProxy, FaultRates
from windlass.registry.versions import Registry
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.audit_verify import verify as verify_chain
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.spec.errors import AskedWrongly, BadInput, Damaged, InUse, NotFound, StoreFailed
from windlass.store.database import sqlite_url
from windlass.store.journal import Journal
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

Tree = Callable[[Path], dict[str, bytes]]
WHOLE = BackupOptions(corpora=True)


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "backup")
    if request.param == "memory":
        return f"memory://backup-{tmp_path.name}-{os.getpid()}"
    return f"{request.getfixturevalue('s3_url')}/{tmp_path.name}-{os.getpid()}"


@pytest.mark.parametrize("secret", [None, b"open sesame"])
def test_a_home_comes_back_as_it_was(home: Path, anywhere: str, secret: bytes | None, tree: Tree) -> None:
    before = tree(home)
    made = make(home, open_repository(anywhere, secret, create=True), WHOLE)
    assert made.snapshot.left_out == ()
    shutil.rmtree(home)
    back = restore(open_repository(anywhere, secret), home)
    assert tree(home) == before
    assert back.needs == ()
    registry = Registry(home)
    assert (str(registry.find("poems")), registry.aliases("poems")) == ("poems@1", {"prod": 1})
    database = open_state(sqlite_url(home / "service.db"))
    assert [key.name for key in ApiKeys(database).list()] == ["ada"]
    assert verify_chain(database).ok
    database.close()
    assert (home / "service.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_bad_network_only_takes_time(
    home: Path, s3_url: str, s3_network: FaultProxy, tree: Tree, tmp_path: Path
) -> None:
    before = tree(home)
    s3_network.faults = FaultRates(late=0.2, late_s=0.05, error=0.2, cut=0.1)
    repository = open_repository(f"{s3_url}/{tmp_path.name}-bad", b"open sesame", create=True)
    make(home, repository, WHOLE)
    shutil.rmtree(home)
    restore(repository, home)
    assert tree(home) == before
    assert s3_network.counts.keys() >= {"error", "cut", "late"}


def test_what_can_be_made_again_and_debris_stay_behind(home: Path, repository: BackupRepository) -> None:
    paths = {file.path for file in make(home, repository).snapshot.files}
    assert not {path for path in paths if path.startswith(("cache", "logs", "prove", "backup"))}
    assert not {path for path in paths if "lock" in path or ".part-" in path or "step-00000030" in path}
    assert "runs/poems/1/checkpoints/step-00000020/part" in paths


def test_tokens_of_corpora_are_kept_only_if_requested(
    home: Path, repository: BackupRepository, tmp_path: Path
) -> None:
    def tokens(options: BackupOptions) -> list[str]:
        return [f.path for f in make(home, repository, options).snapshot.files if f.path.endswith(".bin")]

    assert tokens(BackupOptions()) == []
    back = restore(repository, tmp_path / "other")
    assert (tmp_path / "other/corpora/abc/manifest.json").exists()
    assert "build it again from its text" in back.needs[0]
    assert tokens(WHOLE) == ["corpora/abc/train/tokens.bin"]


def test_what_is_there_already_is_not_sent(home: Path, repository: BackupRepository) -> None:
    first = make(home, repository, WHOLE)
    assert first.sent.new_chunks > 5
    second = make(home, repository, WHOLE)
    assert second.sent.new_chunks <= 1  # the database's copy, if its bytes differ
    assert second.snapshot.id != first.snapshot.id
    Registry(home).register("other", _finished(home.parent / "third", bytes([1]) * 70_000))
    third = make(home, repository, WHOLE)
    assert 1 <= third.sent.new_chunks <= 5  # its manifest and number; the weights are those of poems@1


def test_files_that_did_not_change_are_not_even_read(home: Path, repository: BackupRepository) -> None:
    for path in home.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    make(home, repository, WHOLE)
    assert make(home, repository, WHOLE).sent.known_files > 5


def test_a_file_that_grows_is_sent_from_its_last_piece_on(home: Path, repository: BackupRepository) -> None:
    path = home / "runs" / "poems" / "1" / "large.jsonl"
    path.write_bytes(os.urandom(CHUNK_BYTES + 1000))
    make(home, repository)
    with path.open("ab") as file:
        file.write(os.urandom(1000))
    again = make(home, repository)
    assert again.sent.sent_bytes < 10_000


def test_a_home_elsewhere_has_its_paths_changed(
    home: Path, repository: BackupRepository, tmp_path: Path
) -> None:
    make(home, repository)
    restore(repository, tmp_path / "elsewhere")
    run = json.loads((tmp_path / "elsewhere/runs/poems/1/run.json").read_bytes())
    assert run["corpus"] == str(tmp_path / "elsewhere/corpora/abc")


def test_a_restore_never_touches_a_home_that_is_there(
    home: Path, repository: BackupRepository, tree: Tree
) -> None:
    make(home, repository)
    before = tree(home)
    with pytest.raises(InUse, match="is not empty"):
        restore(repository, home)
    assert tree(home) == before


def test_a_snapshot_is_found_by_the_beginning_of_its_name(
    home: Path, repository: BackupRepository, tmp_path: Path
) -> None:
    first = make(home, repository).snapshot
    make(home, repository)
    assert restore(repository, tmp_path / "other", first.id[:23]).snapshot.id == first.id
    with pytest.raises(NotFound, match="no snapshot is called 'nonsense'"):
        restore(repository, tmp_path / "third", "nonsense")
    with pytest.raises(NotFound, match="2 snapshots begin with"):
        restore(repository, tmp_path / "third", "2")


def test_where_there_is_no_backup_that_is_said(tmp_path: Path, repository: BackupRepository) -> None:
    with pytest.raises(NotFound, match="there is no backup"):
        open_repository(str(tmp_path / "nothing"))
    with pytest.raises(NotFound, match="holds no snapshot"):
        restore(repository, tmp_path / "other")


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_damage_in_the_store_is_noticed_and_nothing_appears(
    home: Path, repository: BackupRepository, tmp_path: Path, harm: str
) -> None:
    make(home, repository)
    victim = repository.place.names("chunks")[3]
    stored = bytearray(repository.place.read(victim))
    if harm == "remove":
        repository.place.remove(victim)
    else:
        stored[-1] ^= 1
        repository.place.write(victim, bytes(stored if harm == "flip" else stored[:-2]))
    with pytest.raises(Damaged, match=victim):
        restore(repository, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_snapshot_that_was_changed_is_not_believed(
    home: Path, repository: BackupRepository, tmp_path: Path
) -> None:
    id_ = make(home, repository).snapshot.id
    stored = repository.place.read(f"snapshots/{id_}")
    repository.place.write(f"snapshots/{id_}", stored[:-3] + b"abc")
    with pytest.raises(Damaged):
        restore(repository, tmp_path / "other")


def test_a_path_that_leads_out_of_the_home_is_refused(
    home: Path, repository: BackupRepository, tmp_path: Path
) -> None:
    from dataclasses import replace

    snapshot = make(home, repository).snapshot
    evil = replace(snapshot.files[0], path="../../outside")
    repository.write(replace(snapshot, files=(evil,), made_s=snapshot.made_s + 1))
    with pytest.raises(Damaged, match="not a path below a home"):
        restore(repository, tmp_path / "deep" / "other")
    assert not (tmp_path / "outside").exists()


def test_a_damaged_model_is_left_out_and_named(home: Path, repository: BackupRepository) -> None:
    (home / "models/poems/2/weights").write_bytes(b"\x09" * 70_000)
    snapshot = make(home, repository).snapshot
    assert "models/poems/2/weights" in snapshot.left_out[0]
    assert not [f for f in snapshot.files if f.path.startswith("models/poems/2/")]


def test_an_alias_never_names_a_version_that_is_not_kept(
    home: Path, repository: BackupRepository, tmp_path: Path
) -> None:
    (home / "models/poems/1/weights").unlink()
    make(home, repository)
    restore(repository, tmp_path / "other")
    assert Registry(tmp_path / "other").aliases("poems") == {}


def test_a_checkpoint_that_goes_away_meanwhile_is_no_failure(
    home: Path, repository: BackupRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Sender.send

    def send_and_remove(self: Sender, file: Path, path: str, **options: Any) -> Any:
        if "step-00000010" in path:
            shutil.rmtree(home / "runs/poems/1/checkpoints/step-00000010", ignore_errors=True)
        return send(self, file, path, **options)

    monkeypatch.setattr(Sender, "send", send_and_remove)
    snapshot = make(home, repository).snapshot
    assert snapshot.left_out == ()
    assert not [f for f in snapshot.files if "step-00000010" in f.path]
    assert [f for f in snapshot.files if "step-00000020" in f.path]


def test_a_journal_that_grows_meanwhile_reaches_at_least_to_the_checkpoint(
    home: Path, repository: BackupRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, send, steps = home / "runs" / "poems" / "1", Sender.send, iter(range(2, 1000))

    def send_and_train(self: Sender, *args: Any, **options: Any) -> Any:
        entry = send(self, *args, **options)
        Journal(StoreDir(run)).append({"event": "step", "step": next(steps)})
        return entry

    monkeypatch.setattr(Sender, "send", send_and_train)
    make(home, repository)
    restore(repository, tmp_path / "other")
    back = list(Journal(StoreDir(tmp_path / "other/runs/poems/1")).read())
    wholes = 8  # files of finished directories were sent before the journal was read
    assert len(back) > wholes
    assert [record["step"] for record in back] == list(range(1, len(back) + 1))


def test_a_database_is_copied_while_others_write(
    home: Path, repository: BackupRepository, tmp_path: Path
) -> None:
    writer = sqlite3.connect(home / "service.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE keys SET name = 'never committed'")
    make(home, repository)
    writer.execute("ROLLBACK")
    writer.close()
    restore(repository, tmp_path / "other")
    database = open_state(sqlite_url(tmp_path / "other" / "service.db"))
    assert [key.name for key in ApiKeys(database).list()] == ["ada"]
    database.close()


def test_what_was_lost_is_reported_by_what_was_seen(home: Path, repository: BackupRepository) -> None:
    snapshot = make(home, repository).snapshot
    assert loss(repository, snapshot, snapshot.made_s + 5).age_s == 5
    repository.see(newest_write_s=snapshot.made_s + 30, every_s=3600)
    lost = loss(repository, snapshot, snapshot.made_s + 100)
    assert (lost.age_s, lost.known_s, lost.bound_s) == (100, 30, 3600)


def test_a_pace_lets_no_more_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("windlass.backup.uploader.time.sleep", slept.append)
    monkeypatch.setattr("windlass.backup.uploader.time.monotonic", lambda: 100.0)
    pace = RateLimit(1000.0)
    for _ in range(3):
        pace.pay(500)
    assert slept == [0.0, 0.5, 1.0]


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"1")
    facts = file.stat()
    fresh = UploadCache(tmp_path / "m", "id", now_s=facts.st_mtime)
    fresh.note("x", facts, "digest", ("chunk",))
    fresh.save()
    assert UploadCache(tmp_path / "m", "id", now_s=0).recall("x", facts) is None
    later = UploadCache(tmp_path / "m", "id", now_s=facts.st_mtime + 60)
    later.note("x", facts, "digest", ("chunk",))
    later.save()
    assert UploadCache(tmp_path / "m", "id", now_s=0).recall("x", facts) == ("digest", ("chunk",))


def test_a_store_that_fails_now_and_then_is_outlived(
    home: Path, repository: BackupRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: Tree
) -> None:
    write, count = StoreDir.write, iter(range(10_000))
    monkeypatch.setattr("windlass.backup.repository.time.sleep", lambda _: None)

    def failing(self: StoreDir, name: str, data: bytes) -> None:
        if name.startswith("chunks/") and next(count) % 3 == 0:
            raise StoreFailed("503")
        write(self, name, data)

    monkeypatch.setattr(StoreDir, "write", failing)
    make(home, repository, WHOLE)
    monkeypatch.undo()
    restore(repository, tmp_path / "other")
    assert tree(tmp_path / "other").keys() == tree(home).keys()


def test_a_wrong_key_is_a_sentence_without_the_key(opened: Callable[..., BackupRepository]) -> None:
    opened(b"open sesame")
    with pytest.raises(BadInput, match="wrong key for this backup") as refused:
        opened(b"close barley")
    assert "sesame" not in str(refused.value)
    assert "barley" not in str(refused.value)
    with pytest.raises(BadInput, match="is encrypted"):
        opened(None)


def test_a_key_for_a_backup_that_has_none_is_refused(opened: Callable[..., BackupRepository]) -> None:
    opened(None)
    with pytest.raises(BadInput, match="not encrypted"):
        opened(b"open sesame")


def test_an_encrypted_backup_shows_nothing_of_the_home(
    home: Path, opened: Callable[..., BackupRepository], leaks: Callable[..., list[str]]
) -> None:
    repository = opened(b"open sesame")
    make(home, repository)
    assert repository.is_sealed
    assert repository.place.local is not None
    words = ["open sesame", "poems", "run.json", "its writer died", "SQLite format", str(home)]
    assert leaks(repository.place.local, words) == []


def test_objects_of_an_encrypted_backup_cannot_be_exchanged(
    home: Path, opened: Callable[..., BackupRepository], tmp_path: Path
) -> None:
    repository = opened(b"open sesame")
    make(home, repository)
    one, other = repository.place.names("chunks")[:2]
    first, second = repository.place.read(one), repository.place.read(other)
    repository.place.write(one, second)
    repository.place.write(other, first)
    with pytest.raises(Damaged):
        restore(repository, tmp_path / "other")


@pytest.fixture
def server_state(postgres: Any) -> str:
    url = postgres.new_database()
    database = open_state(url)
    for name in ("ada", "bob"):
        ApiKeys(database).make(name, Actor("", "cli tester"))
    database.close()
    return url


@pytest.mark.slow
@pytest.mark.parametrize("back_to", ["file", "server"])
def test_a_database_on_a_server_comes_back(
    home: Path, repository: BackupRepository, tmp_path: Path, server_state: str, postgres: Any, back_to: str
) -> None:
    (home / "service.db").unlink()
    make(home, repository, BackupOptions(databases={"service": server_state}))
    target = postgres.new_database() if back_to == "server" else None
    databases = {"service": target} if target else {}
    for name in ("one", "two"):  # the second finds the database filled by the first
        restore(repository, tmp_path / name, databases=databases)
    database = open_state(target or sqlite_url(tmp_path / "two" / "service.db"))
    assert {key.name for key in ApiKeys(database).list()} == {"ada", "bob"}
    assert verify_chain(database).ok
    ApiKeys(database).make("eve", Actor("", "cli tester"))
    database.close()
    if target:
        with pytest.raises(InUse, match="holds records already"):
            restore(repository, tmp_path / "three", databases=databases)


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("back_to", ["files", "servers", "one server"])
def test_several_databases_on_servers_come_back_each_to_its_place(
    home: Path,
    repository: BackupRepository,
    tmp_path: Path,
    server_state: str,
    postgres: Any,
    back_to: str,
    together: bool,
) -> None:
    (home / "service.db").unlink()
    url = server_state if together else postgres.new_database()
    _submitted(url)
    make(home, repository, BackupOptions(databases={"service": server_state, "control": url}))
    targets = {name: postgres.new_database() for name in ("service", "control")}
    if back_to == "one server":
        targets = dict.fromkeys(targets, targets["service"])
    back = restore(repository, tmp_path / "back", databases={} if back_to == "files" else targets).home
    if back_to == "files":
        targets = {"service": sqlite_url(back / "service.db"), "control": sqlite_url(back / "plane.db")}
    for _ in range(2):  # tables are not made anew
        state = open_state(targets["service"])
        assert {key.name for key in ApiKeys(state).list()} == {"ada", "bob"}
        state.close()
        plane = open_plane(targets["control"])
        assert plane.read("SELECT tenant, name FROM plane_jobs") == [("default", "poems")]
        plane.close()


def _submitted(url: str) -> None:
    database = open_plane(url)
    JobStore(database).submit(Submission("default", "poems", "train", "", ResourceNeeds(), "ada"))
    database.close()


def test_an_unknown_database_is_refused_by_name(home: Path, repository: BackupRepository) -> None:
    with pytest.raises(AskedWrongly, match="no database is called 'servise'"):
        make(home, repository, BackupOptions(databases={"servise": "postgresql://nobody@/nothing"}))
    assert not repository.ids()


def _finished(path: Path, weights: bytes) -> Path:
    writer = DirectoryWriter(StoreDir(path))
    writer.write("weights", weights)
    writer.commit({"kind": "test"})
    return path


def test_a_home_that_was_lost_is_not_backed_up_as_an_empty_one(
    home: Path, repository: BackupRepository
) -> None:
    make(home, repository)
    shutil.rmtree(home)
    with pytest.raises(NotFound, match="nothing to back up"):
        make(home, repository)
    assert len(repository.ids()) == 1
