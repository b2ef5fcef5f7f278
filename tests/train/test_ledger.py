"""The ledger tells which positions were used, through the death of whoever writes it."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from windlass.corpus.batches import DIGEST_BITS, digest_of_range
from windlass.train.ledger import Entry, Ledger, halves, joined
from windlass.train.record import Record

BATCH = 8


def entry(step: int) -> Entry:
    first, until = (step - 1) * BATCH, step * BATCH
    return Entry(step, first, until, digest_of_range(first, until))


def records(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "ledger"]


def test_several_steps_make_one_record_with_the_digest_of_all(tmp_path: Path) -> None:
    ledger = Ledger(Record(tmp_path, quiet=True))
    for step in range(1, 6):
        ledger.commit(entry(step))
    ledger.spend("data", 0.5)
    ledger.write()
    ledger.write()
    first, others = records(tmp_path)
    assert first["steps"] == [0, 1], "the first step is written at once"
    assert others["steps"] == [1, 5]
    assert others["samples"] == [BATCH, 5 * BATCH]
    assert others["digest"] == digest_of_range(BATCH, 5 * BATCH)
    assert others["spent"]["data"] == 0.5  # type: ignore[index]


def test_a_successor_writes_what_the_dead_writer_had_not(tmp_path: Path) -> None:
    writer, other = Ledger(Record(tmp_path, quiet=True)), Ledger(Record(tmp_path, quiet=True, rank=1))
    for step in range(1, 4):
        writer.commit(entry(step))
        other.commit(entry(step))
    writer.write()
    other.commit(entry(4))  # the writer died before it wrote this one
    heir = Ledger(Record(tmp_path, quiet=True))
    heir.succeed(2, other.recent(), written=3, step=4)
    heir.commit(entry(5))
    heir.write()
    assert [record["steps"] for record in records(tmp_path)] == [[0, 1], [1, 3], [3, 4], [4, 5]]
    assert [record["generation"] for record in records(tmp_path)] == [0, 0, 0, 2]
    assert len(heir.recent()) == 5


def test_a_successor_after_a_set_back_forgets_what_was_undone(tmp_path: Path) -> None:
    heir = Ledger(Record(tmp_path, quiet=True))
    heir.succeed(
        2, [[n.step, n.first, n.until, n.digest] for n in map(entry, range(1, 9))], written=5, step=5
    )
    heir.commit(entry(6))
    heir.write()
    assert [record["steps"] for record in records(tmp_path)] == [[5, 6]]
    assert [one[0] for one in heir.recent()] == [1, 2, 3, 4, 5, 6]


@given(st.lists(st.integers(0, 2**DIGEST_BITS - 1), min_size=1, max_size=100))
def test_digests_of_many_processes_add_up_exactly_in_float64(digests: list[int]) -> None:
    high = sum(halves(digest)[0] for digest in digests)
    low = sum(halves(digest)[1] for digest in digests)
    assert joined(high, low) == sum(digests) % 2**DIGEST_BITS
