import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.compress import Method, added_loss, compress, methods

METHODS = sorted(methods())


@pytest.mark.parametrize("name", METHODS)
def test_points_that_were_left_out_are_within_the_interval(name: str) -> None:
    """Nine in ten should be; with so few points, four in five must."""
    points = methods()[name].points
    inside = 0
    for left_out in points:
        others = [point for point in points if point != left_out]
        middle, spread = added_loss(others, left_out.weights, left_out.tokens)
        inside += middle / spread <= left_out.added <= middle * spread
    assert inside >= 0.8 * len(points)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_where_its_figures_are_from(name: str) -> None:
    method = methods()[name]
    assert "arXiv:" in method.source
    assert len(method.points) >= 5


@given(st.floats(1e6, 1e12), st.floats(1e8, 1e13), st.sampled_from(METHODS))
def test_compression_never_helps_and_its_interval_holds_its_figure(
    weights: float, tokens: float, name: str
) -> None:
    found = compress(methods()[name], weights, tokens, loss=2.0)
    assert 2.0 < found.low <= found.loss <= found.high
    assert found.served_bytes < 2 * weights


def test_a_model_that_has_seen_more_has_more_to_lose() -> None:
    points = methods()["int4"].points
    assert added_loss(points, 7e9, 1e12)[0] > added_loss(points, 7e9, 1e11)[0]


def test_a_larger_model_loses_less() -> None:
    points = methods()["int4"].points
    assert added_loss(points, 70e9, 3e11)[0] < added_loss(points, 1e9, 3e11)[0]


def test_four_bits_of_seven_billion_weights_cost_what_was_published() -> None:
    """LLaMA 7B: 5.68 -> 6.09."""
    method: Method = methods()["int4"]
    found = compress(method, 6.7e9, 1e12, loss=math.log(5.68))
    assert found.low < math.log(6.09) < found.high
    assert found.served_bytes == 6.7e9 / 2
