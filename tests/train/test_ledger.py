"""The ledger tells which positions were used, through the death of whoever writes it."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from windlass.corpus.batches import DIGEST_BITS, digest_of_range
from windlass.train.event_log import EventLog
from windlass.train.ledger import SampleLedger
from windlass.train.step_sync import halves, joined

BATCH = 8


def entry(step: int) -> list[int]:
    first, until = (step - 1) * BATCH, step * BATCH
    return [step - 1, step, first, until, digest_of_range(first, until)]


def commit(ledger: SampleLedger, step: int) -> None:
    _, _, _, until, digest = entry(step)
    ledger.commit(step, until, digest)


def records(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "ledger"]


def test_several_steps_make_one_record_with_the_digest_of_all(tmp_path: Path) -> None:
    ledger = SampleLedger(EventLog(tmp_path, quiet=True))
    for step in range(1, 6):
        commit(ledger, step)
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
    writer, other = (
        SampleLedger(EventLog(tmp_path, quiet=True)),
        SampleLedger(EventLog(tmp_path, quiet=True, rank=1)),
    )
    for step in range(1, 4):
        commit(writer, step)
        commit(other, step)
    writer.write()
    commit(other, 4)  # the writer died before it wrote this one
    heir = SampleLedger(EventLog(tmp_path, quiet=True))
    heir.begin(4, 4 * BATCH)
    heir.succeed(2, other.recent(), written=3, step=4)
    commit(heir, 5)
    heir.write()
    assert [record["steps"] for record in records(tmp_path)] == [[0, 1], [1, 3], [3, 4], [4, 5]]
    assert [record["generation"] for record in records(tmp_path)] == [0, 0, 2, 2]
    assert len(heir.recent()) == 5


def test_a_successor_after_a_set_back_forgets_what_was_undone(tmp_path: Path) -> None:
    heir = SampleLedger(EventLog(tmp_path, quiet=True))
    heir.begin(5, 5 * BATCH)
    heir.succeed(2, [entry(step) for step in range(1, 9)], written=5, step=5)
    commit(heir, 6)
    heir.write()
    assert [record["steps"] for record in records(tmp_path)] == [[5, 6]]
    assert [one[1] for one in heir.recent()] == [1, 2, 3, 4, 5, 6]


def test_replicas_that_agree_now_and_then_commit_several_steps_at_once(tmp_path: Path) -> None:
    ledger = SampleLedger(EventLog(tmp_path, quiet=True))
    ledger.commit(10, 10 * BATCH, digest_of_range(0, 10 * BATCH))
    ledger.commit(20, 20 * BATCH, digest_of_range(10 * BATCH, 20 * BATCH))
    ledger.write()
    assert [record["steps"] for record in records(tmp_path)] == [[0, 10], [10, 20]]
    assert records(tmp_path)[1]["digest"] == digest_of_range(10 * BATCH, 20 * BATCH)


@given(st.lists(st.integers(0, 2**DIGEST_BITS - 1), min_size=1, max_size=100))
def test_digests_of_many_processes_add_up_exactly_in_float64(digests: list[int]) -> None:
    high = sum(halves(digest)[0] for digest in digests)
    low = sum(halves(digest)[1] for digest in digests)
    assert joined(high, low) == sum(digests) % 2**DIGEST_BITS
