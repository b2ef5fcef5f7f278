"""Small integers for matrices: their laws, and the native kernel beside the exact model of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.models.quantised import LIMITS, Grouped, grouped, without_quantisation
from windlass.serve.engine.native import Matrix, ThreadPool, library
from windlass.serve.engine.quantise import group_of, matmul_reference, quantise, quantised_rows
from windlass.spec.errors import BadInput

Sizes = st.tuples(st.integers(1, 40), st.integers(1, 200))
Seeds = st.integers(0, 1 << 30)
Bits = st.sampled_from([8, 4])


def drawn(seed: int, rows: int, columns: int) -> np.ndarray:
    """Weights as trained ones are: mostly small, a few large."""
    return np.random.default_rng(seed).standard_t(4, (rows, columns)).astype(np.float32) * np.float32(0.05)


@pytest.mark.parametrize(
    ("columns", "group"),
    [(288, 96), (768, 128), (2048, 128), (32, 32), (96, 96), (160, 32), (100, 128), (37, 64)],
)
def test_a_group_is_the_largest_that_divides_a_row(columns: int, group: int) -> None:
    assert group_of(columns, 8) == group
    assert group_of(columns, 4) == 32


@given(Seeds, Sizes, Bits)
@settings(max_examples=40, deadline=None)
def test_integers_keep_their_limits_and_a_filled_row_ends_in_zeros(
    seed: int, size: tuple[int, int], bits: int
) -> None:
    matrix = quantise(drawn(seed, *size), bits)
    integers = matrix.integers()
    assert (matrix.rows, matrix.width) == size
    assert matrix.padded % matrix.group == 0
    assert LIMITS[bits][0] <= integers.min()
    assert integers.max() <= LIMITS[bits][1]
    assert not integers[:, matrix.width :].any()


def test_no_pair_of_products_leaves_sixteen_bits() -> None:
    assert max(2 * 255 * max(map(abs, limits)) for limits in LIMITS.values()) < 1 << 15


@given(Seeds, Sizes, Bits)
@settings(max_examples=40, deadline=None)
def test_the_chosen_scales_lose_no_more_than_those_of_the_largest_weight(
    seed: int, size: tuple[int, int], bits: int
) -> None:
    values = drawn(seed, *size)
    matrix = quantise(values, bits)
    filled = np.pad(values, ((0, 0), (0, matrix.padded - size[1]))).reshape(size[0], -1, matrix.group)
    plain = np.abs(filled).max(axis=2, keepdims=True) / LIMITS[bits][1]
    naive = np.rint(filled / np.where(plain > 0, plain, 1)) * plain
    lost = np.square(values - matrix.widened()).sum()
    assert lost <= np.square(filled - naive).sum() * 1.0001 + 1e-12


def test_a_row_of_zeros_stays_so() -> None:
    assert not quantise(np.zeros((3, 64), np.float32), 4).widened().any()


@given(Seeds, Bits)
def test_packing_keeps_every_integer(seed: int, bits: int) -> None:
    low, high = LIMITS[bits]
    integers = np.random.default_rng(seed).integers(low, high + 1, (5, 64)).astype(np.int8)
    np.testing.assert_array_equal(
        grouped(integers, np.ones((5, 2), np.float32), bits, 64).integers(), integers
    )


def test_nibbles_lie_with_the_even_column_low_and_eight_for_zero() -> None:
    matrix = grouped(np.array([[-8, 7, 0, 1]], np.int8), np.ones((1, 1), np.float32), 4, 4)
    assert matrix.q.tolist() == [[0xF0, 0x98]]


@pytest.mark.parametrize("bits", [8, 4])
def test_feedback_loses_less_of_the_outputs_than_rounding_alone(bits: int) -> None:
    random = np.random.default_rng(5)
    x = (random.standard_normal((2000, 96)) @ random.standard_normal((96, 96))).astype(np.float32)
    values = drawn(6, 48, 96)
    moments = (x.T @ x).astype(np.float64) / len(x)
    alone, fed = (quantise(values, bits, given).widened() for given in (None, moments))
    losses = [np.square(x @ (values - matrix).T).sum() for matrix in (alone, fed)]
    assert losses[1] < 0.8 * losses[0]


def test_columns_that_calibration_never_used_are_rounded_all_the_same() -> None:
    values = drawn(7, 8, 64)
    moments = np.diag([1.0] * 32 + [0.0] * 32)
    assert np.abs(quantise(values, 8, moments).widened() - values).max() < 0.02


def test_rows_of_activations_are_integers_of_at_most_127() -> None:
    integers, scale = quantised_rows(np.array([[0.5, -1.0, 0.25], [0, 0, 0]], np.float32))
    assert integers.tolist() == [[64, -127, 32], [0, 0, 0]]  # 63.5 and 31.75; a tie goes to the even one
    np.testing.assert_array_equal(scale, np.array([1 / 127, 0], np.float32))


@given(Seeds, Sizes, Bits)
@settings(max_examples=30, deadline=None)
def test_the_reference_is_the_product_of_what_both_sides_stand_for(
    seed: int, size: tuple[int, int], bits: int
) -> None:
    matrix = quantise(drawn(seed, *size), bits)
    x = drawn(seed + 1, 3, size[1])
    integers, scale = quantised_rows(x)
    expected = (integers * scale[:, None].astype(np.float64)) @ matrix.widened().T.astype(np.float64)
    np.testing.assert_allclose(matmul_reference(x, matrix), expected, rtol=1e-5, atol=1e-6)


def native(x: np.ndarray, matrix: Grouped) -> np.ndarray:
    shared = library()
    if shared is None:
        pytest.skip("the native library is not built here")
    packed = Matrix(
        shared, f"int{matrix.bits}", matrix.q, columns=matrix.width, group=matrix.group, scale=matrix.scale
    )
    return packed.multiply(ThreadPool(shared, 1), x)


@given(Seeds, Sizes, Bits)
@settings(max_examples=40, deadline=None)
def test_the_native_product_is_that_of_the_reference(seed: int, size: tuple[int, int], bits: int) -> None:
    matrix = quantise(drawn(seed, *size), bits)
    x = drawn(seed + 1, 5, size[1])
    wanted = matmul_reference(x, matrix)
    np.testing.assert_allclose(native(x, matrix), wanted, rtol=2e-6, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_native_product_of_the_largest_numbers_does_not_saturate(bits: int, sign: int) -> None:
    end = LIMITS[bits][0] if sign < 0 else LIMITS[bits][1]
    matrix = grouped(np.full((16, 256), end, np.int8), np.ones((16, 2), np.float32), bits, 256)
    np.testing.assert_array_equal(native(np.ones((1, 256), np.float32), matrix)[0], np.full(16, 256.0 * end))


def test_quantisation_of_another_version_is_refused() -> None:
    told = {"quantization_config": {"quant_method": "windlass", "format": 2, "weights": "int8"}}
    with pytest.raises(BadInput, match="is not supported"):
        without_quantisation(told, "config.json")
