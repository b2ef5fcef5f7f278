"""The front: nothing on it is beaten, and everything off it is."""

from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.fleet.pareto import front

Points = list[tuple[int, int, int]]
points = st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=30)


def beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@given(points)
def test_a_point_is_on_the_front_if_no_other_beats_it(points: Points) -> None:
    best = {p for p in points if not any(beats(other, p) for other in points)}
    assert set(front(points, lambda p: p)) == best


@given(points)
def test_equal_points_are_reported_once_and_in_order(points: Points) -> None:
    kept = front(points, lambda p: p)
    assert kept == sorted(set(kept))
