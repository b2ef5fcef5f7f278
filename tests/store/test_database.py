"""The contract of a database, kept by SQLite and by a real PostgreSQL."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from windlass.spec.errors import BadInput
from windlass.store.database import Conflict, Database, Schema, Transaction, open_database

NOTES = Schema("notes", ("CREATE TABLE notes (name TEXT PRIMARY KEY, size BIGINT, weight DOUBLE PRECISION)",))


@pytest.fixture
def db(state_url: str) -> Iterator[Database]:
    database = open_database(state_url, [NOTES])
    yield database
    database.close()


def names(db: Database) -> list[str]:
    return [row[0] for row in db.read("SELECT name FROM notes ORDER BY name")]


def test_what_is_written_is_read(db: Database) -> None:
    db.write("INSERT INTO notes VALUES (?, ?, ?)", "春 ? 50% 'it''s'", 2**62, 0.1)
    assert db.read("SELECT * FROM notes") == [("春 ? 50% 'it''s'", 2**62, 0.1)]
    assert db.read("SELECT size FROM notes WHERE name LIKE '%?%' AND size > ?", 5) == [(2**62,)]


def test_a_statement_may_return_rows(db: Database) -> None:
    made = "INSERT INTO notes VALUES (?, ?, NULL) ON CONFLICT (name) DO UPDATE SET size = notes.size + 1"
    made += " RETURNING size"
    assert [db.write(made, "a", 7), db.write(made, "a", 7)] == [[(7,)], [(8,)]]


def test_a_transaction_that_fails_leaves_nothing(db: Database) -> None:
    def half(transaction: Transaction) -> None:
        transaction.execute("INSERT INTO notes VALUES ('half', 1, 1.0)")
        raise BadInput("no")

    with pytest.raises(BadInput):
        db.atomically(half)
    assert names(db) == []
    db.write("INSERT INTO notes VALUES ('whole', 1, 1.0)")
    assert names(db) == ["whole"]


def test_a_row_that_exists_is_a_conflict(db: Database) -> None:
    db.write("INSERT INTO notes VALUES ('a', 1, 1.0)")
    with pytest.raises(Conflict), db.transaction() as transaction:
        transaction.execute("INSERT INTO notes VALUES ('a', 2, 1.0)")
    assert db.read("SELECT size FROM notes") == [(1,)]


@pytest.mark.parametrize("alone", ["", "notes"])
def test_threads_that_count_lose_nothing(db: Database, alone: str) -> None:
    db.write("INSERT INTO notes VALUES ('count', 0, NULL)")

    def more(transaction: Transaction) -> None:
        size = transaction.execute("SELECT size FROM notes")[0][0]
        transaction.execute("UPDATE notes SET size = ?", size + 1)

    def count() -> None:
        for _ in range(10):
            db.atomically(more, light=True, alone=alone)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db.read("SELECT size FROM notes") == [(40,)]


def test_commits_of_others_change_the_revision_and_nothing_else_does(db: Database, state_url: str) -> None:
    other = open_database(state_url)
    before = settled(db)
    assert db.read("SELECT * FROM notes") == []
    with pytest.raises(ZeroDivisionError), other.transaction() as transaction:
        transaction.execute("INSERT INTO notes VALUES ('undone', ?, NULL)", 1 // 0)
    other.write("INSERT INTO notes VALUES ('light', 1, NULL)", light=True)
    assert db.revision() == before
    other.write("INSERT INTO notes VALUES ('told', 1, NULL)")
    assert soon(lambda: db.revision() != before)
    other.close()


def test_ones_own_commit_changes_the_revision_at_once(db: Database) -> None:
    before = settled(db)
    db.write("INSERT INTO notes VALUES ('a', 1, NULL)")
    assert db.revision() != before


def test_tables_grow_by_steps_and_keep_what_they_hold(state_url: str) -> None:
    first = open_database(state_url, [NOTES])
    first.write("INSERT INTO notes VALUES ('old', 1, 1.0)")
    first.close()
    grown = Schema("notes", (*NOTES.steps, "ALTER TABLE notes ADD COLUMN colour TEXT"))
    for _ in range(2):
        second = open_database(state_url, [grown])
        assert second.read("SELECT name, colour FROM notes") == [("old", None)]
        second.close()


def test_a_database_that_a_newer_program_made_is_refused(state_url: str) -> None:
    newer = Schema("notes", (*NOTES.steps, "ALTER TABLE notes ADD COLUMN colour TEXT"))
    open_database(state_url, [newer]).close()
    with pytest.raises(BadInput, match="a newer windlass made its tables"):
        open_database(state_url, [NOTES])


def test_a_step_that_fails_takes_no_other_with_it(state_url: str) -> None:
    broken = Schema("notes", (*NOTES.steps, "ALTER TABLE nothing ADD COLUMN colour TEXT"))
    with pytest.raises(Exception, match="nothing"):
        open_database(state_url, [broken])
    database = open_database(state_url, [NOTES])
    assert names(database) == []
    database.close()


COUNTING = """
import sys
from windlass.store.database import Schema, open_database
notes = Schema("notes", (sys.argv[2], "INSERT INTO notes VALUES ('count', 0, NULL)"))
db = open_database(sys.argv[1], [notes])
def more(t):
    size = t.execute("SELECT size FROM notes")[0][0]
    t.execute("UPDATE notes SET size = ?", size + 1)
for _ in range(25):
    db.atomically(more, light=True)
"""


def test_processes_that_start_together_make_the_tables_once_and_lose_no_count(
    state_url: str,
) -> None:
    command = [sys.executable, "-c", COUNTING, state_url, NOTES.steps[0]]
    children = [subprocess.Popen(command) for _ in range(3)]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0]
    assert open_database(state_url).read("SELECT size FROM notes") == [(75,)]


DYING = """
import os, sys
from windlass.store.database import open_database
db = open_database(sys.argv[1])
for number in range(1000):
    with db.transaction(light=bool(number % 2)) as t:
        t.execute("INSERT INTO notes VALUES (?, 1, NULL)", f"{number:04d} first")
        t.execute("INSERT INTO notes VALUES (?, 2, NULL)", f"{number:04d} second")
        if number == 20:
            print("within", flush=True)
            sys.stdin.read()
    print(number, flush=True)
"""


def test_a_process_killed_in_a_transaction_loses_nothing_committed_and_leaves_no_half(
    db: Database, state_url: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DYING, state_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        said = [line.strip() for line in iter(child.stdout.readline, "within\n")]
        child.kill()
    assert said == [str(number) for number in range(20)]
    assert names(db) == [f"{number:04d} {part}" for number in range(20) for part in ("first", "second")]
    db.write("INSERT INTO notes VALUES ('after', 1, NULL)")


def settled(db: Database) -> int:
    """Return the revision once it is known: news of what was committed before may still be under way."""
    assert soon(lambda: db.revision() is not None)
    time.sleep(0.2 if db.shown.startswith("postgresql") else 0)
    revision = db.revision()
    assert revision is not None
    return revision


def soon(look: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not look() and time.monotonic() < until:
        time.sleep(0.005)
    return look()
