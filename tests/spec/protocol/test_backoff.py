"""Exponential back-off."""

from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.protocol.backoff import Backoff


@given(st.integers(1, 10_000))
def test_waits_double_up_to_a_limit(failures: int) -> None:
    backoff = Backoff(first_s=1.0, max_s=60.0)
    assert backoff.wait_s(failures) == min(60.0, 2.0 ** min(failures - 1, 30))
    assert backoff.wait_s(failures) <= backoff.wait_s(failures + 1)


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_up_to_half_of_a_wait(failures: int, draw: float) -> None:
    backoff = Backoff(first_s=1.0, max_s=60.0)
    longest = backoff.wait_s(failures)
    assert longest / 2 <= backoff.wait_s(failures, draw) <= longest


def test_without_a_failure_there_is_no_wait() -> None:
    assert Backoff(first_s=1.0, max_s=60.0).wait_s(0) == 0.0
