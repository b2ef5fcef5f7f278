import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.local.curve import CostCurve, LinearCost, RateTable

sizes = st.floats(1.0, 1e9)
points = st.dictionaries(st.integers(1, 10**9), st.floats(1e-6, 1e3), min_size=1, max_size=6)


@given(points)
def test_a_curve_goes_through_its_points(points: dict[int, float]) -> None:
    curve = CostCurve(points.items())
    for size, seconds in points.items():
        assert curve(size) == pytest.approx(seconds, rel=1e-9)


@given(points, sizes, sizes)
def test_a_curve_through_rising_points_never_falls(points: dict[int, float], a: float, b: float) -> None:
    rising = list(zip(sorted(points), sorted(points.values()), strict=True))
    small, large = sorted((a, b))
    assert CostCurve(rising)(small) <= CostCurve(rising)(large) * (1 + 1e-9)


@given(st.floats(0.0, 1.0), st.floats(0.1, 10.0), st.floats(0.5, 3.0), st.integers(1, 4), sizes)
def test_one_noisy_point_does_not_bend_a_line(
    start: float, ratio: float, noise: float, noisy: int, size: float
) -> None:
    true = [(x, start + ratio * x) for x in (0.1, 1.0, 3.0, 5.0, 8.0)]
    points = [(x, y * noise if at == noisy else y) for at, (x, y) in enumerate(true)]
    assert LinearCost(points)(size) == pytest.approx(start + ratio * size, rel=1e-6)


def test_a_line_through_a_single_point_is_in_proportion() -> None:
    assert LinearCost([(2.0, 6.0)])(5.0) == pytest.approx(15.0)


def test_below_the_smallest_size_only_the_start_of_the_work_is_left() -> None:
    assert CostCurve([(100, 2.0), (1000, 8.0)])(1) == 2.0


def test_above_the_largest_size_time_grows_in_proportion() -> None:
    assert CostCurve([(100, 2.0), (1000, 8.0)])(4000) == pytest.approx(32.0)


def test_a_curve_without_points_is_refused() -> None:
    with pytest.raises(ValueError, match="points"):
        CostCurve([])


def test_a_grid_is_exact_at_its_corners_and_between_them_inside_their_range() -> None:
    rates = {(1, 1): 1.0, (1, 4): 2.0, (4, 1): 4.0, (4, 4): 8.0}
    grid = RateTable(rates)
    assert all(grid(*corner) == pytest.approx(rate) for corner, rate in rates.items())
    assert grid(2, 2) == pytest.approx(8.0**0.5)
    assert grid(100, 0.1) == pytest.approx(4.0)


def test_a_corner_that_was_too_costly_has_the_rate_of_the_next_smaller_one() -> None:
    grid = RateTable({(1, 1): 1.0, (1, 4): 2.0, (4, 1): 4.0})
    assert grid(4, 4) == pytest.approx(2.0)
