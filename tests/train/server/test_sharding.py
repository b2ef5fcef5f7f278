"""Which server holds what."""

import math

from hypothesis import given
from hypothesis import strategies as st

from windlass.parallel.param_shard import whole
from windlass.train.checkpoint.reader import cover
from windlass.train.server.sharding import divide_weights

SHAPES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1
)


class Held:
    def __init__(self, box: object) -> None:
        self.box = box


@given(SHAPES, st.integers(1, 9))
def test_every_value_has_exactly_one_server(shapes: dict[str, tuple[int, int]], servers: int) -> None:
    division = divide_weights(shapes, servers)
    for name, shape in shapes.items():
        boxes = [part[name] for part in division if name in part]
        assert sum(math.prod(box.shape) for box in boxes) == math.prod(shape)
        assert cover(whole(shape), [Held(box) for box in boxes])[1] == []  # type: ignore[type-var]


@given(SHAPES, st.integers(1, 9))
def test_servers_hold_equally_much_to_within_a_row(shapes: dict[str, tuple[int, int]], servers: int) -> None:
    sizes = [sum(math.prod(b.shape) for b in part.values()) for part in divide_weights(shapes, servers)]
    widest = max(width for _, width in shapes.values())
    fair = sum(sizes) / servers
    assert all(abs(size - fair) <= widest for size in sizes)


def test_a_large_matrix_is_divided_by_rows() -> None:
    division = divide_weights({"bias": (10,), "matrix": (100, 10)}, 2)
    assert division[0]["bias"].shape == (10,)
    assert division[0]["matrix"].spans[0][1] == division[1]["matrix"].spans[0][0]
    assert "bias" not in division[1]
