"""The state of a service, on SQLite and on a real PostgreSQL, at a time that tests set."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from windlass.serve.records.audit_log import Actor
from windlass.serve.records.state import open_state
from windlass.store.database import Database

ME = Actor("", "cli tester", "127.0.0.1")


@dataclass
class Clock:
    """A clock that stands still until a test moves it."""

    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def state(state_url: str) -> Iterator[Database]:
    database = open_state(state_url)
    yield database
    database.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def me() -> Actor:
    return ME
