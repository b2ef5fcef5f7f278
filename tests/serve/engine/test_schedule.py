"""How a step's budget is shared out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.engine.schedule import decide_chunks


@given(st.lists(st.integers(1, 500), max_size=20), st.integers(1, 300))
def test_the_budget_is_used_up_or_nothing_is_left_to_do(remaining: list[int], budget: int) -> None:
    given_out = decide_chunks(remaining, budget)
    assert all(0 <= got <= want for got, want in zip(given_out, remaining, strict=True))
    assert sum(given_out) == min(budget, sum(remaining))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.integers(4, 300))
def test_the_oldest_always_gets_on(remaining: list[int], budget: int) -> None:
    assert decide_chunks(remaining, budget)[0] >= min(remaining[0], budget // 4)


def test_short_prompts_overtake_a_long_one() -> None:
    assert decide_chunks([1000, 30, 20], 100) == [50, 30, 20]
