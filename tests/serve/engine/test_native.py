"""The products of packed matrices beside numpy, and their independence of company and threads."""

from __future__ import annotations

import ctypes
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from windlass.models.mmap_tensors import widened
from windlass.serve.engine.native import Matrix, ThreadPool, library
from windlass.serve.engine.quantise import matmul_reference, quantise

CPU = Path("/proc/cpuinfo")
HAS_AVX2 = CPU.exists() and " avx2 " in CPU.read_text()
KINDS = ("float32", "bfloat16", "int8", "int4")
BITS = {"int8": 8, "int4": 4}
SIZES = [(1, 1), (3, 5), (16, 32), (17, 33), (40, 96), (100, 7), (129, 200)]
ROWS = [*range(1, 41), 97, 200]


class Packed:
    """A random matrix, packed; and what it should multiply to."""

    def __init__(self, shared: ctypes.CDLL, kind: str, n: int, k: int, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.kind, self.k = kind, k
        values = self.some(n)
        if kind in BITS:
            self._grouped = quantise(values, BITS[kind])
            self.matrix = Matrix(
                shared, kind, self._grouped.q, columns=k, group=self._grouped.group, scale=self._grouped.scale
            )
            return
        stored: NDArray[Any] = values
        if kind == "bfloat16":
            stored = (values.view(np.uint32) >> 16).astype(np.uint16)
        self._values = widened(stored)
        self.matrix = Matrix(shared, kind, stored, columns=k)

    def some(self, rows: int) -> NDArray[np.float32]:
        return self._random.standard_normal((rows, self.k)).astype(np.float32)

    def wanted(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.kind in BITS:
            return matmul_reference(x, self._grouped)
        return (x.astype(np.float64) @ self._values.T.astype(np.float64)).astype(np.float32)


@pytest.fixture(scope="module")
def thread_pool(shared: ctypes.CDLL) -> ThreadPool:
    return ThreadPool(shared, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_a_product_is_what_numpy_computes(
    shared: ctypes.CDLL, thread_pool: ThreadPool, kind: str, n: int, k: int
) -> None:
    packed = Packed(shared, kind, n, k)
    tolerance = 1e-6 if kind in BITS else 1e-5
    for rows in ROWS:
        x = packed.some(rows)
        np.testing.assert_allclose(
            packed.matrix.multiply(thread_pool, x), packed.wanted(x), rtol=tolerance, atol=tolerance * k**0.5
        )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 150), k=st.integers(1, 150), rows=st.integers(1, 210), seed=st.integers(0, 2**32),
    data=st.data(),
)  # fmt: skip
def test_company_does_not_change_a_bit_of_a_row(
    shared: ctypes.CDLL,
    thread_pool: ThreadPool,
    kind: str,
    n: int,
    k: int,
    rows: int,
    seed: int,
    data: st.DataObject,
) -> None:
    packed = Packed(shared, kind, n, k, seed)
    x = packed.some(rows)
    together = packed.matrix.multiply(thread_pool, x)
    chosen = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=12))
    assert np.array_equal(packed.matrix.multiply(thread_pool, x[chosen]), together[chosen])
    alone = chosen[0]
    assert np.array_equal(packed.matrix.multiply(thread_pool, x[alone : alone + 1])[0], together[alone])


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_a_bit(shared: ctypes.CDLL, thread_pool: ThreadPool, kind: str) -> None:
    packed = Packed(shared, kind, 150, 70)
    for rows in (1, 5, 40, 200):
        x = packed.some(rows)
        wanted = packed.matrix.multiply(thread_pool, x)
        for threads in (2, 3):
            assert np.array_equal(packed.matrix.multiply(ThreadPool(shared, threads), x), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 31, 68])
def test_a_value_that_is_no_number_spoils_its_own_row_only(
    shared: ctypes.CDLL, thread_pool: ThreadPool, kind: str, bad: float, place: int
) -> None:
    packed = Packed(shared, kind, 20, 69)
    x = packed.some(7)
    clean = packed.matrix.multiply(thread_pool, x)
    x[4, place] = bad
    got = packed.matrix.multiply(thread_pool, x)
    assert not np.isfinite(got[4]).any()
    others = [0, 1, 2, 3, 5, 6]
    assert np.array_equal(got[others], clean[others])


def test_rows_of_zeros_give_zeros(shared: ctypes.CDLL, thread_pool: ThreadPool) -> None:
    for kind in KINDS:
        packed = Packed(shared, kind, 20, 40)
        assert not packed.matrix.multiply(thread_pool, np.zeros((3, 40), np.float32)).any()


def test_a_team_serves_many_calls_that_come_one_after_the_other(shared: ctypes.CDLL) -> None:
    packed, thread_pool = Packed(shared, "float32", 64, 16), ThreadPool(shared, 3)
    x = packed.some(8)
    wanted = packed.matrix.multiply(thread_pool, x)
    assert all(np.array_equal(packed.matrix.multiply(thread_pool, x), wanted) for _ in range(60))


def test_a_team_serves_whatever_thread_calls_it(shared: ctypes.CDLL) -> None:
    packed, thread_pool = Packed(shared, "float32", 64, 16), ThreadPool(shared, 2)
    x = packed.some(8)
    wanted, got = packed.matrix.multiply(thread_pool, x), []
    for _ in range(20):
        caller = threading.Thread(target=lambda: got.append(packed.matrix.multiply(thread_pool, x)))
        caller.start()
        caller.join()
    assert len(got) == 20
    assert all(np.array_equal(one, wanted) for one in got)


def test_teams_come_and_go(shared: ctypes.CDLL) -> None:
    packed = Packed(shared, "float32", 64, 16)
    before = threading.active_count()
    x = packed.some(8)
    wanted = packed.matrix.multiply(ThreadPool(shared, 1), x)
    for threads in (1, 2, 3) * 10:
        assert np.array_equal(packed.matrix.multiply(ThreadPool(shared, threads), x), wanted)
        ThreadPool(shared, threads)  # one that never worked
    assert threading.active_count() == before


@pytest.mark.skipif(
    shutil.which("g++") is None or not HAS_AVX2,
    reason="no C++ compiler, or no processor for which there is a kernel",
)
def test_the_library_is_there_where_it_can_be_built() -> None:
    """Without this, a build that fails would only make the other tests of native code skip."""
    assert library() is not None
