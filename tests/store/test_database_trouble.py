"""A database that is damaged, locked, read-only, full or away: a clear sentence, and nothing kept is lost."""

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from windlass.spec.errors import BadInput, Damaged, StoreFailed
from windlass.store import on_sqlite
from windlass.store.database import Database, Schema, open_database, sqlite_url

NOTES = Schema("notes", ("CREATE TABLE notes (name TEXT PRIMARY KEY, text TEXT)",))
NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "with space %41" / "service.db"


def opened(file: Path) -> Database:
    return open_database(sqlite_url(file), [NOTES])


def test_the_file_and_its_logs_are_their_owners_alone(file: Path) -> None:
    database = opened(file)
    database.write("INSERT INTO notes VALUES ('a', 'b')")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
    assert modes == {"service.db": 0o600, "service.db-wal": 0o600, "service.db-shm": 0o600}
    database.close()


def test_a_file_that_is_no_database_is_damaged(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"once upon a time " * 500)
    with pytest.raises(Damaged, match="not a whole SQLite database"):
        opened(file)


def test_a_database_with_a_torn_page_is_damaged(file: Path) -> None:
    database = opened(file)
    for number in range(300):
        database.write("INSERT INTO notes VALUES (?, ?)", f"{number}", "x" * 500, light=True)
    database.close()
    size = file.stat().st_size
    with file.open("rb+") as opened_file:
        opened_file.seek(size // 4)
        opened_file.write(os.urandom(size // 2))
    with pytest.raises(Damaged):
        opened(file).read("SELECT sum(length(text)), count(*) FROM notes WHERE text LIKE 'x%'")


def test_a_lock_that_is_held_too_long_is_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_sqlite, "PATIENCE_S", 0.1)
    database = opened(file)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailed, match="locked by another process"):
        database.write("INSERT INTO notes VALUES ('a', 'b')")
    assert database.read("SELECT * FROM notes") == []  # readers do not wait
    holder.execute("ROLLBACK")
    database.write("INSERT INTO notes VALUES ('a', 'b')")
    holder.close()


def test_what_cannot_be_written_can_still_be_read_or_says_so() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else for a moment")
    folder = Path(tempfile.mkdtemp())
    file = folder / "service.db"
    opened(file).close()
    shutil.chown(file, NOBODY)
    file.chmod(0o400)
    folder.chmod(0o755)
    try:
        os.seteuid(NOBODY)
        with pytest.raises(StoreFailed, match="no permission"):
            opened(file)
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, timeout=10).returncode:
        pytest.skip("no small file system can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=10)


def test_a_full_disk_is_reported_and_takes_nothing_that_was_committed(small_disk: Path) -> None:
    database = opened(small_disk / "service.db")
    kept: list[int] = []

    def fill() -> None:
        for number in range(1000):
            database.write("INSERT INTO notes VALUES (?, ?)", f"{number:04d}", "x" * 4000)
            kept.append(number)

    with pytest.raises(StoreFailed, match=r"no space left|full"):
        fill()
    assert len(kept) > 5
    assert database.read("SELECT count(*) FROM notes") == [(len(kept),)]
    database.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "names no kind"),
        ("service.db", "names no kind"),
        ("sqlite://service.db", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:////", "names no file"),
        ("sqlite:///a%00b", "names no file"),
        ("mysql://ada:hushhush@host/x", "unknown kind of database 'mysql://'"),
        ("ada:hushhush@host://x", "names no kind"),
    ],
)
def test_a_url_that_names_no_database_is_refused_without_repeating_it(url: str, reason: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_database(url)
    assert reason in str(caught.value)
    assert "hushhush" not in str(caught.value)


def test_a_server_that_went_away_is_reported_and_is_used_again_when_it_is_back(postgres: Any) -> None:
    database = open_database(postgres.new_database(), [NOTES])
    database.write("INSERT INTO notes VALUES ('kept', '')")
    before = known_revision(database)
    postgres.stop()
    try:
        with pytest.raises(StoreFailed, match="check that the server runs"):
            database.read("SELECT * FROM notes")
        assert soon(lambda: database.revision() is None)
    finally:
        postgres.start()
    assert database.read("SELECT name FROM notes") == [("kept",)]
    database.write("INSERT INTO notes VALUES ('after', '')")
    assert soon(lambda: database.revision() not in (None, before))
    database.close()


def test_a_transaction_whose_server_dies_leaves_nothing(postgres: Any) -> None:
    database = open_database(postgres.new_database(), [NOTES])

    def half() -> None:
        with database.transaction() as transaction:
            transaction.execute("INSERT INTO notes VALUES ('half', '')")
            postgres.stop()
            postgres.start()

    with pytest.raises(StoreFailed):
        half()
    assert database.read("SELECT * FROM notes") == []
    database.close()


FREEZING = """
import sys
from windlass.store.database import open_database
with open_database(sys.argv[1]).transaction(alone="notes") as transaction:
    transaction.execute("INSERT INTO notes VALUES ('frozen', '')")
    print("within", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_client_that_freezes_in_its_turn_does_not_freeze_the_others(postgres: Any) -> None:
    url = postgres.new_database()
    database = open_database(url, [NOTES])
    command = [sys.executable, "-c", FREEZING, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "within\n"
        child.send_signal(signal.SIGSTOP)
        try:
            insert = "INSERT INTO notes VALUES ('mine', '')"
            database.atomically(lambda transaction: transaction.execute(insert), alone="notes")
        finally:
            child.kill()
    assert database.read("SELECT name FROM notes") == [("mine",)]
    database.close()


@pytest.mark.parametrize("password", ["wrong-s3cret", "s3cret@:/%pass"])
def test_no_password_is_in_what_a_server_says(postgres: Any, password: str) -> None:
    url = f"postgresql://postgres:{quote(password, safe='')}@127.0.0.1:{postgres.port}/absent"
    with pytest.raises(StoreFailed) as caught:
        open_database(url)
    told = "".join(traceback.format_exception(caught.value))
    assert password not in told
    assert quote(password, safe="") not in told


def test_a_password_opens_the_server_over_tcp(postgres: Any) -> None:
    url = f"postgresql://postgres:{quote(postgres.password, safe='')}@127.0.0.1:{postgres.port}/postgres"
    database = open_database(url)
    assert database.read("SELECT 1") == [(1,)]
    assert database.shown == f"postgresql://127.0.0.1:{postgres.port}/postgres"
    database.close()


def known_revision(database: Database) -> int:
    assert soon(lambda: database.revision() is not None)
    revision = database.revision()
    assert revision is not None
    return revision


def soon(look: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not look() and time.monotonic() < until:
        time.sleep(0.005)
    return look()
