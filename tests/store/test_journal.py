import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.spec.errors import Damaged
from windlass.store.journal import Journal
from windlass.store.place import Place

RECORDS = [{"step": i, "text": "月\n" * i} for i in range(5)]


def test_records_come_back_in_order(place: Place) -> None:
    journal = Journal(place)
    for record in RECORDS:
        journal.append(record)
    journal.append(*RECORDS, sync=True)
    assert list(journal.read()) == RECORDS + RECORDS


def test_an_absent_journal_has_no_records(place: Place) -> None:
    assert list(Journal(place).read()) == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(0, 400))
def test_a_torn_line_is_dropped_and_the_next_record_is_whole(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    path.unlink(missing_ok=True)
    journal = Journal(Place(tmp_path))
    journal.append(*RECORDS)
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    whole = RECORDS[: data.count(b"\n")]
    assert list(journal.read()) == whole
    journal.append({"after": 1})
    assert list(journal.read()) == [*whole, {"after": 1}]


def test_a_broken_line_in_the_middle_is_damage(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"a": 1}\n{"b": \n{"c": 3}\n')
    with pytest.raises(Damaged, match="line 2"):
        list(Journal(Place(tmp_path)).read())


def test_numbers_that_are_no_numbers_survive(tmp_path: Path) -> None:
    journal = Journal(Place(tmp_path))
    journal.append({"loss": math.nan})
    (record,) = journal.read()
    assert math.isnan(record["loss"])


def test_the_newest_record_of_a_kind_is_found_from_the_end(tmp_path: Path) -> None:
    journal = Journal(Place(tmp_path))
    journal.append(*({"event": "step", "n": n, "pad": "x" * 300} for n in range(1000)))
    journal.append({"event": "other"})
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"event": "step", "n": 10')  # its writer died here
    assert (journal.last("step") or {})["n"] == 999
    assert journal.last("nothing") is None
    assert Journal(Place(tmp_path), "absent").last("step") is None
    journal.append({"event": "step", "n": 1001})
    assert (journal.last("step") or {})["n"] == 1001
    assert list(journal.read())[-1]["n"] == 1001
