"""The token bucket: what it grants is bounded by its capacity, the time, and what is added."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.http.token_bucket import TokenBucket


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 5.0)), max_size=300))
def test_no_more_is_taken_than_the_capacity_the_time_and_what_was_added(events: list[float | None]) -> None:
    bucket, now_s, added, taken = TokenBucket(32.0, 1.0), 0.0, 0, 0
    for event in events:
        if event is None:
            bucket.add(0.1)
            added += 1
        else:
            now_s += event
            taken += bucket.take(now_s)
    assert taken <= 32.0 + 0.1 * added + now_s + 1e-6


def test_it_begins_full_and_is_full_again_after_a_while() -> None:
    bucket = TokenBucket(2.0, 1.0)
    assert [bucket.take(100.0) for _ in range(3)] == [True, True, False]
    assert not bucket.is_full(101.0)
    assert bucket.is_full(102.0)


def test_a_clock_that_is_set_back_adds_nothing() -> None:
    bucket = TokenBucket(1.0, 1.0)
    assert bucket.take(100.0)
    assert not bucket.take(50.0)
