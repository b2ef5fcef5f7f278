"""What every request looks up: never older than the last commit, there even while the database is not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.record_cache import RETRY_S, TRUST_S, RecordCache
from windlass.serve.records.state import open_state
from windlass.spec.errors import StoreFailed
from windlass.store.sql import Database


class Book(Database):
    """A database of one page that a test writes, turns away from, or makes doubtful."""

    shown = "book"

    def __init__(self) -> None:
        self.page: dict[str, str] = {"a": "one"}
        self.number: int | None = 1
        self.reads = 0
        self.away = False

    def look(self, key: str) -> str | None:
        if self.away:
            raise StoreFailed("away")
        self.reads += 1
        return self.page.get(key)

    def revision(self) -> int | None:
        return self.number

    def read(self, sql: str, *args: object) -> Any:
        raise NotImplementedError

    def transaction(self, *, light: bool = False, alone: str = "") -> Any:
        raise NotImplementedError

    def has_table(self, name: str) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(book: Book, clock: Clock) -> RecordCache[str, str]:
    return RecordCache(book, book.look, clock=clock)


def test_it_is_read_once_until_the_next_commit(book: Book, known: RecordCache[str, str]) -> None:
    assert [known.get("a"), known.get("a"), known.at_hand("a")] == ["one"] * 3
    assert book.reads == 1
    book.page, book.number = {"a": "two"}, 2
    assert known.at_hand("a") is None
    assert [known.get("a"), known.at_hand("a"), book.reads] == ["two", "two", 2]


def test_it_is_read_every_time_while_the_revision_is_unknown(
    book: Book, known: RecordCache[str, str]
) -> None:
    known.get("a")
    book.number = None
    book.page = {}
    assert [known.get("a"), known.at_hand("a")] == [None, None]
    book.page = {"a": "two"}
    assert known.get("a") == "two"


def test_what_a_late_thread_read_does_not_outlive_the_commit(book: Book, clock: Clock) -> None:
    def look(key: str) -> str:
        """Read the old value; before it is kept, somebody commits and another thread sees it."""
        if book.reads == 0:
            book.reads, book.number = 1, 2
            assert known.get("a") == "new"
            return "old"
        return "new"

    known = RecordCache(book, look, clock=clock)
    assert known.get("a") == "old"  # it began before the commit
    assert known.get("a") == "new"


def test_what_was_known_stays_known_for_a_while_when_the_database_is_away(
    book: Book, known: RecordCache[str, str], clock: Clock
) -> None:
    known.get("a")
    book.away, book.number = True, None
    assert known.get("a") == "one"
    with pytest.raises(StoreFailed):
        known.get("never asked for")
    clock.now_s = TRUST_S
    assert known.get("a") == "one"
    clock.now_s = TRUST_S + 1
    with pytest.raises(StoreFailed):
        known.get("a")


def test_an_unreachable_database_is_tried_once_a_second(
    book: Book, known: RecordCache[str, str], clock: Clock
) -> None:
    known.get("a")
    book.away, book.number = True, None
    known.get("a")
    book.away, book.page = False, {"a": "two"}
    assert known.get("a") == "one"
    clock.now_s += RETRY_S
    assert known.get("a") == "two"


def test_only_one_caller_waits_for_a_database_that_does_not_answer(
    book: Book, known: RecordCache[str, str], clock: Clock
) -> None:
    known.get("a")
    book.away, book.number = True, None
    known.get("a")
    clock.now_s += RETRY_S
    asking, answered = threading.Event(), threading.Event()

    def hang(key: str) -> str:
        asking.set()
        answered.wait(20)
        return "two"

    known._read = hang
    first = threading.Thread(target=known.get, args=("a",))
    first.start()
    assert asking.wait(20)
    assert known.get("a") == "one"
    answered.set()
    first.join()
    assert known.get("a") == "two"


def test_keys_open_while_the_server_restarts(postgres: Any, me: Actor) -> None:
    state = open_state(postgres.new_database())
    keys = ApiKeys(state)
    key, token = keys.make("ada", me)
    assert keys.find(token) == key
    postgres.stop()
    try:
        assert keys.find(token) == key
        with pytest.raises(StoreFailed):
            keys.find("wlk_unknown")
    finally:
        postgres.start()
    state.close()
