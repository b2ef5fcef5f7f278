"""The contract of a database, kept by SQLite and by a real PostgreSQL."""

import threading
from collections.abc import Iterator

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
