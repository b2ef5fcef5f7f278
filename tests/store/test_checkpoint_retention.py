from hypothesis import given
from hypothesis import strategies as st

from windlass.store.checkpoint_retention import retained

steps = st.sets(st.integers(0, 500), max_size=40)


@given(steps, st.integers(1, 5), st.none() | st.integers(1, 100))
def test_the_newest_always_stay(found: set[int], keep: int, every: int | None) -> None:
    assert set(sorted(found)[-keep:]) <= retained(found, keep=keep, keep_every=every) <= found


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 3), st.integers(1, 100))
def test_what_stays_for_ever_does_not_depend_on_what_was_forgotten(
    gaps: list[int], keep: int, every: int
) -> None:
    kept, seen, step = set[int](), list[int](), 0
    for gap in gaps:
        step += gap
        seen.append(step)
        kept = retained({*kept, step}, keep=keep, keep_every=every)
    assert kept == retained(seen, keep=keep, keep_every=every)


def test_one_of_every_hundred_steps_stays() -> None:
    assert retained(range(0, 360, 30), keep=2, keep_every=100) == {0, 120, 210, 300, 330}
