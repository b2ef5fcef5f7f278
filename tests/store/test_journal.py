import fcntl
import math
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.spec.errors import Damaged, StoreFailed
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

RECORDS = [{"step": i, "text": "月\n" * i} for i in range(5)]


def test_records_come_back_in_order(place: StoreDir) -> None:
    journal = Journal(place)
    for record in RECORDS:
        journal.append(record)
    journal.append(*RECORDS, sync=True)
    assert list(journal.read()) == RECORDS + RECORDS


def test_an_absent_journal_has_no_records(place: StoreDir) -> None:
    assert list(Journal(place).read()) == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(0, 400))
def test_a_torn_line_is_dropped_and_the_next_record_is_whole(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    path.unlink(missing_ok=True)
    journal = Journal(StoreDir(tmp_path))
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
        list(Journal(StoreDir(tmp_path)).read())


def test_numbers_that_are_no_numbers_survive(tmp_path: Path) -> None:
    journal = Journal(StoreDir(tmp_path))
    journal.append({"loss": math.nan})
    (record,) = journal.read()
    assert math.isnan(record["loss"])


def test_the_newest_record_of_a_kind_is_found_from_the_end(tmp_path: Path) -> None:
    journal = Journal(StoreDir(tmp_path))
    journal.append(*({"event": "step", "n": n, "pad": "x" * 300} for n in range(1000)))
    journal.append({"event": "other"})
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"event": "step", "n": 10')  # its writer died here
    assert (journal.last("step") or {})["n"] == 999
    assert journal.last("nothing") is None
    assert Journal(StoreDir(tmp_path), "absent").last("step") is None
    journal.append({"event": "step", "n": 1001})
    assert (journal.last("step") or {})["n"] == 1001
    assert list(journal.read())[-1]["n"] == 1001


def test_writers_at_the_same_time_lose_nothing_even_after_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    def tear() -> None:
        """Die in the middle of a line, as a writer whose turn it is may do."""
        with path.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(b'{"torn": ')

    def write(writer: int) -> None:
        journal = Journal(StoreDir(tmp_path))
        for n in range(60):
            if n % 5 == writer:
                tear()
            journal.append({"writer": writer, "n": n, "pad": "x" * (997 * (n % 7))})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    found = [(record["writer"], record["n"]) for record in Journal(StoreDir(tmp_path)).read()]
    assert sorted(found) == [(writer, n) for writer in range(4) for n in range(60)]
    assert all([n for w, n in found if w == writer] == list(range(60)) for writer in range(4))


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    journal = Journal(StoreDir(tmp_path))
    journal.append({"n": 1})
    whole = (tmp_path / "journal.jsonl").read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, before[1]))
    try:
        with pytest.raises(StoreFailed):
            journal.append({"n": 2, "pad": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "journal.jsonl").read_bytes() == whole
    journal.append({"n": 3})
    assert [record["n"] for record in journal.read()] == [1, 3]


def test_a_writer_that_is_frozen_in_its_turn_does_not_freeze_the_others(tmp_path: Path) -> None:
    journal = Journal(StoreDir(tmp_path))
    journal.append({"n": 1})
    with (tmp_path / "journal.jsonl").open("ab") as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        journal.append({"n": 2})
    assert [record["n"] for record in journal.read()] == [1, 2]
