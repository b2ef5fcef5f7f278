"""The ledger is followed through faults, and nothing that is wrong in it goes unseen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.corpus.batches import digest_of, digest_of_range
from windlass.runs.audit import LedgerAudit, audit_records, with_epochs
from windlass.spec.errors import Damaged

Record = dict[str, Any]


def ledger(a: int, b: int, p: int, q: int, **changed: Any) -> Record:
    whole = {"event": "ledger", "generation": 1, "steps": [a, b], "samples": [p, q]}
    return {**whole, "digest": digest_of_range(p, q), **changed}


@dataclass
class Simulated:
    """A run that trains, saves, fails and goes on, and knows what it really used."""

    batch: int
    records: list[Record] = field(default_factory=list)
    read: list[list[int]] = field(default_factory=list)
    """The positions of every step that was not taken back."""
    written: int = 0
    saved: int = 0
    undone: int = 0

    def step(self) -> None:
        begin = len(self.read) * self.batch
        self.read.append(list(range(begin, begin + self.batch)))

    def write(self) -> None:
        steps = self.read[self.written :]
        if steps:
            digest = digest_of([position for step in steps for position in step])
            whole = ledger(self.written, len(self.read), steps[0][0], steps[-1][-1] + 1, digest=digest)
            self.records.append(whole)
            self.written = len(self.read)

    def save(self) -> None:
        self.write()
        self.saved = len(self.read)
        self.records.append({"event": "checkpoint", "step": self.saved})

    def lose_a_worker(self) -> None:
        """Another one writes what the lost one did not; all go on where they are."""
        self.write()
        self._go_on("settled", len(self.read), "memory")

    def lose_all(self) -> None:
        """What was not written is forgotten; a run without a checkpoint says nothing and begins again."""
        self.undone += self.batch * max(0, self.written - self.saved)
        del self.read[self.saved :]
        self.written = self.saved
        self.records.append({"event": "started"})
        if self.saved:
            self._go_on("resumed", self.saved, "checkpoint")

    def finish(self) -> list[Record]:
        self.step()
        self.save()
        return [*self.records, {"event": "finished", "step": len(self.read)}]

    def _go_on(self, event: str, step: int, source: str) -> None:
        self.records.append({"event": event, "step": step, "samples": step * self.batch, "source": source})


happenings = st.lists(
    st.sampled_from(["step", "step", "step", "step", "write", "save", "lose_a_worker", "lose_all"]),
    max_size=40,
)


def simulated(batch: int, happened: list[str]) -> tuple[Simulated, list[Record]]:
    run = Simulated(batch)
    for what in happened:
        getattr(run, what)()
    return run, run.finish()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), happenings)
def test_a_run_that_went_through_faults_is_proved_exactly_once(batch: int, happened: list[str]) -> None:
    run, records = simulated(batch, happened)
    found = audit_records(records)
    assert found.ok, found.reasons
    assert found.samples_used == sum(map(len, run.read))
    assert found.ranges == [[0, found.samples_used]]
    assert (found.samples_lost, found.samples_repeated, found.steps) == (0, 0, len(run.read))
    assert found.rolled_back == run.undone


def audits_of(records: list[Record], place: int, instead: list[Record]) -> tuple[LedgerAudit, Counter[int]]:
    """Audit a journal with other records at one place; also say what a plain count finds used."""
    changed = [*records[:place], *instead, *records[place + 1 :]]
    used: list[tuple[int, int]] = []  # a position, and the step that used it
    fresh = False
    for record in changed:
        if record["event"] == "ledger":
            (a, b), (p, q) = record["steps"], record["samples"]
            used = [] if fresh and a == 0 else used
            used += [(position, a + 1 + (position - p) * (b - a) // (q - p)) for position in range(p, q)]
        if record["event"] in ("resumed", "settled"):
            used = [(position, step) for position, step in used if position < record["samples"]]
        fresh = record["event"] == "started" or (fresh and record["event"] not in ("resumed", "ledger"))
    return audit_records(changed), Counter(position for position, _ in used)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), happenings, st.sampled_from(["drop", "double", "digest"]), st.data())
def test_a_lost_a_doubled_and_a_changed_record_are_found(
    batch: int, happened: list[str], mutation: str, data: st.DataObject
) -> None:
    run, records = simulated(batch, happened)
    places = [place for place, record in enumerate(records) if record["event"] == "ledger"]
    place = data.draw(st.sampled_from(places))
    before = records[place]
    worse = {**before, "digest": before["digest"] ^ (1 << data.draw(st.integers(0, 47)))}
    found, used = audits_of(
        records, place, {"drop": [], "double": [before, before], "digest": [worse]}[mutation]
    )
    until = max(used, default=-1) + 1
    assert found.samples_used == len(used)
    assert found.samples_lost == until - len(used)
    assert found.samples_repeated == used.total() - len(used)
    exactly_once = used == Counter(range(sum(map(len, run.read))))
    if mutation == "digest" or not exactly_once:
        assert not found.ok


def test_a_run_that_began_again_and_lost_its_record_is_not_proved_by_what_was_undone() -> None:
    _, records = simulated(1, ["step", "step", "write", "lose_all"])
    found = audit_records([record for place, record in enumerate(records) if place != 2])
    assert found.reasons == ["the run is finished at step 1, but the ledger knows of 2 steps"]


@settings(deadline=None)
@given(st.integers(1, 9), happenings, st.data())
def test_an_unrecorded_roll_back_is_a_repetition(
    batch: int, happened: list[str], data: st.DataObject
) -> None:
    _, records = simulated(batch, ["step", "save", "step", "write", "lose_all", *happened])
    places = [place for place, record in enumerate(records) if record["event"] == "resumed"]
    place = data.draw(st.sampled_from(places))
    found, used = audits_of(records, place, [])
    assert found.ok == (max(used.values()) == 1)
    assert found.samples_repeated == used.total() - len(used)


def test_gaps_and_repetitions_are_named_by_their_positions() -> None:
    found = audit_records([ledger(0, 2, 0, 8), ledger(3, 5, 12, 20), ledger(4, 5, 16, 20)])
    assert found.gaps == [[8, 12]]
    assert found.repeated == [[16, 20, 2]]
    assert found.reasons == [
        "positions 8 to 11 were not used (4 samples)",
        "positions 16 to 19 were used 2 times",
    ]


def test_steps_that_do_not_follow_each_other_are_named() -> None:
    found = audit_records([ledger(0, 2, 0, 8), ledger(3, 4, 8, 12)])
    assert found.reasons == [
        "position 8: step 2 used the positions before it, but the next record starts with step 4"
    ]


def test_a_wrong_digest_names_the_steps_that_read_something_else() -> None:
    found = audit_records([ledger(0, 2, 0, 8, digest=5)])
    place = "generation 1, steps 1 to 2: what was read is not positions 0 to 7, by its digest"
    assert found.reasons == [place]


def test_a_record_that_a_roll_back_cut_is_counted() -> None:
    back = {"event": "resumed", "step": 1, "samples": 4}
    found = audit_records([ledger(0, 3, 0, 12), back, ledger(1, 3, 4, 12)])
    assert (found.ok, found.cut, found.rolled_back, found.roll_backs) == (True, 1, 8, 1)


def test_a_roll_back_without_samples_goes_by_its_step() -> None:
    found = audit_records([ledger(0, 3, 0, 12), {"event": "resumed", "step": 1}, ledger(1, 3, 4, 12)])
    assert (found.ok, found.samples_used) == (True, 12)


def test_a_checkpoint_or_an_end_that_the_ledger_does_not_know_of_is_reported() -> None:
    saved = audit_records([ledger(0, 2, 0, 8), {"event": "checkpoint", "step": 3}])
    assert saved.reasons == ["there is a checkpoint at step 3, but the ledger knows of 2 steps"]
    ended = audit_records([ledger(0, 2, 0, 8), {"event": "finished", "step": 3}])
    assert ended.reasons == ["the run is finished at step 3, but the ledger knows of 2 steps"]


def test_a_journal_without_a_ledger_proves_nothing_unless_no_step_was_taken() -> None:
    assert audit_records([{"event": "started"}]).ok
    found = audit_records([{"event": "started"}, {"event": "step", "step": 10}])
    assert found.reasons == ["the run kept no ledger, so nothing can be shown about its samples"]


def test_many_faults_are_not_all_reported() -> None:
    found = audit_records([ledger(n, n + 1, 2 * n, 2 * n + 1) for n in range(1, 100)])
    assert len(found.gaps) == 99
    assert found.reasons[20] == "and 79 more like this"


def test_a_record_that_cannot_be_is_damage() -> None:
    with pytest.raises(Damaged, match="record 1 of the journal"):
        audit_records([ledger(3, 3, 4, 12)])


@settings(deadline=None)
@given(st.integers(10, 300), st.integers(0, 600), st.integers(0, 9))
def test_whole_and_begun_epochs_are_counted(samples: int, until: int, seed: int) -> None:
    records = [ledger(0, 1, 0, until)] if until else []
    found = with_epochs(audit_records(records), samples, seed)
    assert found.ok
    assert found.epochs is not None
    assert (found.epochs.whole, found.epochs.begun) == divmod(until, samples)
    assert found.epochs.checked == -(-until // samples) * samples


def test_of_many_or_large_epochs_some_positions_are_looked_at() -> None:
    used = audit_records([ledger(0, 1, 0, 100_000)])
    many = with_epochs(used, 100, 1, max_positions=1000)
    assert many.epochs is not None
    assert many.epochs.checked == 1000
    assert many.notes == ["the order of samples was checked at 1000 of 100000 positions"]
    large = with_epochs(used, 90_000, 1, max_positions=1000)
    assert large.epochs is not None
    assert (large.ok, large.epochs.checked) == (True, 1000)


def test_an_order_that_repeats_a_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.runs.audit.windows_at", lambda positions, samples, seed: positions // 2)
    found = with_epochs(audit_records([ledger(0, 1, 0, 10)]), 10, 1)
    assert found.reasons == ["epoch 0: two of its positions are the same sample"]


def test_records_of_members_that_were_replaced_do_not_count() -> None:
    found = audit_records(
        [
            {"event": "settled", "generation": 1, "step": 0, "samples": 0},
            ledger(0, 5, 0, 40),
            {"event": "settled", "generation": 2, "step": 5, "samples": 40},
            ledger(5, 7, 40, 56),  # they were cut off and had not heard of it
            ledger(5, 8, 40, 64, generation=2),
        ]
    )
    assert found.ok
    assert (found.samples_used, found.samples_repeated) == (64, 0)
    assert found.notes == ["1 records of members that had been replaced do not count"]
