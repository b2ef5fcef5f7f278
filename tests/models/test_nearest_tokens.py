"""Nearest tokens, beside a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.models.nearest_tokens import nearest


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 30), st.integers(1, 8), st.integers(0, 2**31), st.integers(1, 40))
def test_the_nearest_are_those_of_a_plain_loop(tokens: int, width: int, seed: int, count: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(tokens, width)).astype(np.float32)
    found = nearest(vectors, 0, count)
    angles = [float(v @ vectors[0] / np.linalg.norm(v) / np.linalg.norm(vectors[0])) for v in vectors[1:]]
    assert len(found) == min(count, tokens - 1)
    np.testing.assert_allclose([c for _, c in found], sorted(angles, reverse=True)[:count], atol=2e-6)
    for number, cosine in found:
        np.testing.assert_allclose(angles[number - 1], cosine, atol=2e-6)


def test_those_left_out_and_vectors_of_zeros_are_near_to_nothing() -> None:
    vectors = np.array([[1, 0], [2, 0.1], [1, 0.2], [0, 0]], np.float32)
    assert [number for number, _ in nearest(vectors, 0, 9, but=[1])] == [2]
    assert nearest(vectors, 3, 9) == []
