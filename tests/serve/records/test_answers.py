"""Answers that are kept for repeated requests, on every database."""

from __future__ import annotations

from windlass.serve.records.idempotency_store import MAX_ANSWERS, Repeatable, claim, keep, release
from windlass.store.database import Database

FIRST = Repeatable("ada", "k", b"body")


def test_an_answer_is_kept_for_a_day(state: Database) -> None:
    assert claim(state, FIRST, "a", 0.0).state == "claimed"
    keep(state, FIRST, "a", "answer", 10.0)
    assert claim(state, FIRST, "b", 86_000.0).body == "answer"
    assert claim(state, FIRST, "b", 86_411.0).state == "claimed"


def test_the_claim_of_a_gateway_that_died_ends(state: Database) -> None:
    claim(state, FIRST, "a", 0.0)
    assert claim(state, FIRST, "b", 599.0).state == "running"
    assert claim(state, FIRST, "b", 601.0).state == "claimed"
    keep(state, FIRST, "a", "too late", 602.0)
    release(state, FIRST, "a")
    assert claim(state, FIRST, "c", 603.0).state == "running"


def test_a_tenant_keeps_a_bounded_number_of_answers(state: Database) -> None:
    for number in range(MAX_ANSWERS + 5):
        asked = Repeatable("ada", str(number), b"body")
        claim(state, asked, "a", float(number))
        keep(state, asked, "a", "answer", float(number))
    assert state.read("SELECT count(*) FROM answers")[0][0] == MAX_ANSWERS
    assert claim(state, asked, "b", 2000.0).state == "answered"


def test_an_answer_that_is_too_large_is_not_kept(state: Database) -> None:
    claim(state, FIRST, "a", 0.0)
    keep(state, FIRST, "a", "x" * (1 << 20), 1.0)
    assert claim(state, FIRST, "b", 2.0).state == "claimed"
