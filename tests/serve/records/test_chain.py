"""The audit log: whatever is changed, removed, moved or cut off is noticed, and old records may leave."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.serve.records.audit_log import (
    Act,
    Actor,
    AuditRecord,
    newest_records,
    read_head,
    read_records,
    write_down,
)
from windlass.serve.records.audit_verify import fold, verify
from windlass.serve.records.state import open_state
from windlass.spec.errors import Damaged
from windlass.store.database import Database, sqlite_url

NOW_S = 1_800_000_000.0
TEXTS = ("key_id", "who", "address", "action", "target", "result", "note", "before_hash", "hash")
COLUMNS = ("number", "at_ms", *TEXTS)


def fill(state: Database, count: int) -> None:
    for number in range(count):
        write_down(state, Actor("key_1", "ada"), Act("key.make", f"k{number}"), now_s=NOW_S + number)


@cache
def filled(count: int) -> bytes:
    """Return the file of a log of so many records; to write them is what takes time."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "service.db"
        state = open_state(sqlite_url(file))
        fill(state, count)
        state.close()
        return file.read_bytes()


@contextmanager
def written(count: int) -> Iterator[Database]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "service.db"
        file.write_bytes(filled(count))
        state = open_state(sqlite_url(file))
        yield state
        state.close()


def test_what_was_written_is_read_and_verifies(state: Database, me: Actor) -> None:
    write_down(state, me, Act("key.make", "ada", note="春"), now_s=NOW_S)
    record = write_down(state, me, Act("key.revoke", "bob", result="refused"), now_s=NOW_S + 1)
    assert newest_records(state, 1) == [record]
    assert (record.number, record.at_ms, record.who, record.result) == (
        2,
        1_800_000_001_000,
        "cli tester",
        "refused",
    )
    verdict = verify(state)
    assert (verdict.ok, verdict.records, verdict.last, verdict.hash) == (True, 2, 2, record.hash)
    assert read_head(state).hash == record.hash


def test_an_empty_log_is_whole(state: Database) -> None:
    assert verify(state).ok


def test_what_is_written_breaks_no_line_and_holds_no_key(state: Database, me: Actor) -> None:
    token = "wlk_" + "a" * 43
    nasty = f"a\nb\x00c\x1b[31m\ud800{token}" + "x" * 5000
    record = write_down(state, me, Act("key.make", nasty), now_s=NOW_S)
    assert newest_records(state, 1) == [record]
    assert token not in record.target
    assert record.target.isprintable()
    assert len(record.target) == 500
    assert verify(state).ok


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.sampled_from(COLUMNS), st.text(st.characters(codec="ascii", min_codepoint=32)))
def test_an_edited_record_is_noticed(number: int, column: str, text: str) -> None:
    with written(8) as state:
        old = state.read(f"SELECT {column} FROM audit WHERE number = ?", number)[0][0]
        new: object = text if column in TEXTS else len(text) + 9
        state.write(f"UPDATE audit SET {column} = ? WHERE number = ?", new, number, light=True)
        assert verify(state).ok == (old == new)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", ["x", 7, 0.5, b"x"])
def test_a_value_of_another_type_is_noticed_and_breaks_nothing(column: str, value: object) -> None:
    with written(4) as state:
        state.write(f"UPDATE audit SET {column} = ? WHERE number = 2", value, light=True)
        assert not verify(state).ok
        state.write(
            f"UPDATE audit_head SET {'number' if column == 'number' else 'hash'} = ?", value, light=True
        )
        assert not verify(state).ok


def test_a_head_that_is_gone_is_noticed(state: Database) -> None:
    fill(state, 2)
    state.write("DELETE FROM audit_head")
    assert not verify(state).ok


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(1, 8), min_size=1))
def test_a_removed_record_is_noticed(numbers: set[int]) -> None:
    with written(8) as state:
        for number in numbers:
            state.write("DELETE FROM audit WHERE number = ?", number, light=True)
        assert not verify(state).ok


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(1, 7)))
def test_records_in_another_order_are_noticed(order: list[int]) -> None:
    with written(6) as state:
        for number in range(1, 7):
            state.write("UPDATE audit SET number = ? WHERE number = ?", 100 + number, number, light=True)
        for number, place in enumerate(order, start=1):
            state.write("UPDATE audit SET number = ? WHERE number = ?", place, 100 + number, light=True)
        assert verify(state).ok == (order == sorted(order))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 5))
def test_an_end_cut_off_with_its_head_is_noticed_by_a_noted_head(left: int) -> None:
    with written(6) as state:
        noted = read_head(state).hash
        state.write("DELETE FROM audit WHERE number > ?", left, light=True)
        last = (read_records(state)[-1:] or [None])[0]
        number, sealed = (last.number, last.hash) if last is not None else (0, "0" * 64)
        state.write("UPDATE audit_head SET number = ?, hash = ?", number, sealed, light=True)
        assert verify(state).ok
        assert not verify(state, noted=noted).ok


def test_a_head_that_was_noted_earlier_is_found_among_the_records(state: Database) -> None:
    fill(state, 2)
    noted = read_head(state).hash
    fill(state, 2)
    assert verify(state, noted=noted).ok
    assert not verify(state, noted=noted[:-1]).ok


def test_a_record_that_was_slipped_in_behind_the_head_is_noticed(state: Database) -> None:
    fill(state, 2)
    first = read_records(state)[0]
    forged = "INSERT INTO audit VALUES (3, 0, '', 'x', '', 'x', 'x', 'x', '', ?, ?)"
    state.write(forged, first.hash, first.hash)
    assert not verify(state).ok


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_folded_records_leave_a_log_that_still_verifies(ages: list[int]) -> None:
    with written(6) as state:
        for age in sorted(ages):
            before = read_records(state)
            gone = fold(state, Actor("", "cli ada"), older_than_s=NOW_S + age, now_s=NOW_S + 100)
            assert gone == sum(record.at_ms < 1000 * (NOW_S + age) for record in before)
            assert verify(state).ok
        fill(state, 1)
        assert verify(state).ok


def test_records_that_are_gone_without_a_fold_are_noticed(state: Database, me: Actor) -> None:
    fill(state, 6)
    fold(state, me, older_than_s=NOW_S + 3, now_s=NOW_S + 100)
    assert [record.number for record in read_records(state)] == [4, 5, 6, 7]
    state.write("DELETE FROM audit WHERE number = 4")
    assert verify(state).reasons == ["records 1 to 4 are missing, and no audit.fold record accounts for them"]


def test_a_log_that_is_not_whole_is_not_folded(state: Database, me: Actor) -> None:
    fill(state, 3)
    state.write("UPDATE audit SET who = 'eve' WHERE number = 1")
    with pytest.raises(Damaged, match="record 1 was changed"):
        fold(state, me, older_than_s=NOW_S + 3, now_s=NOW_S + 100)
    assert len(read_records(state)) == 3


def test_a_long_log_is_read_in_pages(monkeypatch: pytest.MonkeyPatch, state: Database) -> None:
    monkeypatch.setattr("windlass.serve.records.audit_verify.PAGE", 2)
    fill(state, 5)
    assert (verify(state).ok, verify(state).records) == (True, 5)


APPENDING = """
import sys
from windlass.serve.records.audit_log import Act, Actor, write_down
from windlass.serve.records.state import open_state
state = open_state(sys.argv[1])
for number in range(20):
    write_down(state, Actor("", sys.argv[2]), Act("test", str(number)), now_s=number)
"""


def test_processes_that_append_at_once_make_one_chain(state: Database, state_url: str) -> None:
    writers = ["one", "two", "three"]
    children = [subprocess.Popen([sys.executable, "-c", APPENDING, state_url, writer]) for writer in writers]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0]
    verdict = verify(state)
    assert (verdict.reasons, verdict.records) == ([], 60)
    for writer in writers:
        assert told_by(read_records(state), writer) == [str(number) for number in range(20)]


def told_by(records: list[AuditRecord], writer: str) -> list[str]:
    return [record.target for record in records if record.who == writer]
