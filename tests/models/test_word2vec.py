"""Which pairs are drawn and how they move the vectors: the native library beside numpy, and laws of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.models import word2vec
from windlass.models.word2vec import (
    LOSS_EVERY,
    Groups,
    Learnt,
    Matrices,
    Sampler,
    Word2VecOptions,
    changes,
    draw,
    draw_numpy,
    first_matrices,
    learn,
    learn_numpy,
    pass_key,
    run,
)

END = 0
needs_library = pytest.mark.skipif(word2vec.library() is None, reason="the native library is not built here")


def text(length: int, vocabulary: int = 40, seed: int = 3) -> np.ndarray:
    """A few words are frequent, most are rare, as in any text."""
    drawn = np.random.default_rng(seed).zipf(1.4, length) % vocabulary
    return drawn.astype(np.int32)


def sampler(tokens: np.ndarray, vocabulary: int = 40, **options: float) -> Sampler:
    counts = np.bincount(tokens, minlength=vocabulary)
    return Sampler(counts, END, Word2VecOptions(**options))  # type: ignore[arg-type]


@needs_library
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 300), st.integers(0, 2**40), st.integers(1, 9), st.integers(1, 12),
    st.sampled_from([0, 1e-3, 0.1]),
)  # fmt: skip
def test_both_ways_draw_the_same_groups(
    length: int, first: int, distance: int, negatives: int, subsample: float
) -> None:
    tokens = text(length)
    tables = sampler(text(500), distance=distance, negatives=negatives, subsample=subsample)
    one, two = (way(tables, pass_key(1, 2), tokens, first) for way in (draw, draw_numpy))
    np.testing.assert_array_equal(one.targets_GN, two.targets_GN)
    np.testing.assert_array_equal(one.starts, two.starts)
    np.testing.assert_array_equal(one.contexts_P, two.contexts_P)


@pytest.mark.parametrize("way", [draw, draw_numpy])
def test_no_pair_crosses_the_end_of_a_document(way: Callable[..., Groups]) -> None:
    tokens = np.array([1, 2, 3, END, 4, 5, 6, END, 7, 8, 9], np.int32)
    groups = way(sampler(tokens, distance=8, subsample=0), pass_key(1, 0), tokens, 0)
    documents = [{1, 2, 3, END}, {4, 5, 6, END}, {7, 8, 9}]
    assert len(groups.targets_GN) == 11
    for number, targets in enumerate(groups.targets_GN):
        company = groups.contexts_P[groups.starts[number] : groups.starts[number + 1]]
        assert any({int(targets[0]), *company.tolist()} <= document for document in documents)


@pytest.mark.parametrize("way", [draw, draw_numpy])
def test_pairs_are_no_farther_apart_than_requested_and_reach_that_far(way: Callable[..., Groups]) -> None:
    tokens = np.arange(1, 400, dtype=np.int32)
    groups = way(sampler(tokens, 400, distance=3, subsample=0), pass_key(1, 0), tokens, 0)
    owner = np.repeat(groups.targets_GN[:, 0], np.diff(groups.starts))
    assert set(np.abs(owner - groups.contexts_P)) == {1, 2, 3}


def test_frequent_tokens_are_left_out_as_often_as_the_formula_says() -> None:
    counts = np.array([0, 9000, 1000], np.int64)
    tables = Sampler(counts, END, Word2VecOptions(subsample=1e-2, distance=1))
    tokens = np.tile(np.array([1] * 9 + [2], np.int32), 2000)
    groups = draw(tables, pass_key(1, 0), tokens, 0)
    kept = np.bincount(groups.targets_GN[:, 0], minlength=3)
    for token, share in ((1, 0.9), (2, 0.1)):
        wanted = np.sqrt(1e-2 / share) + 1e-2 / share
        assert kept[token] / (20000 * share) == pytest.approx(wanted, rel=0.06)


def test_negatives_are_drawn_by_counts_to_the_power_of_three_quarters() -> None:
    counts = np.array([10, 1000, 100, 10], np.int64)
    tables = Sampler(counts, END, Word2VecOptions(negatives=20, distance=1, subsample=0))
    groups = draw(tables, pass_key(5, 0), np.full(4000, 3, np.int32), 0)
    drawn = np.bincount(groups.targets_GN[:, 1:][groups.targets_GN[:, 1:] >= 0], minlength=4)
    wanted = counts.astype(float) ** 0.75
    wanted[3] = 0  # it is the token itself
    np.testing.assert_allclose(drawn / drawn.sum(), wanted / wanted.sum(), atol=0.01)


RATE = 0.05
ROUNDING = float(np.finfo(np.float32).eps) / 2
LOGISTIC = 2e-6
"""How exact the native library's table of the logistic function is (native/word2vec.cpp)."""


@dataclass(frozen=True)
class Step:
    """What one group makes of both matrices, in float64, and how far float32 may be from each element.

    A sum of n products in any order has n roundings (Higham 2002, section 3.1). Many groups one after another
    have no useful bound: each amplifies the errors of those before it.
    """

    inputs: tuple[np.ndarray, np.ndarray]
    outputs: tuple[np.ndarray, np.ndarray]
    losses_C: np.ndarray

    @classmethod
    def of(cls, begin: Matrices, group: Groups, rate: float) -> Step:
        contexts, targets = group.contexts_P, group.targets_GN[group.targets_GN >= 0]
        inputs, outputs = begin.inputs_VS.astype(np.float64), begin.outputs_VS.astype(np.float64)
        h_CD, o_ND = inputs[contexts], outputs[targets]
        scores_CN, labels_N = h_CD @ o_ND.T, np.arange(len(targets)) == 0
        slopes_CN = rate * (labels_N - 1 / (1 + np.exp(-scores_CN)))
        off_CN = h_CD.shape[1] * ROUNDING * (np.abs(h_CD) @ np.abs(o_ND).T)
        # The logistic function is nowhere steeper than 1/4; it, the difference and the product are rounded.
        off_CN = rate * (off_CN / 4 + LOGISTIC + 3 * ROUNDING)
        return cls(
            _added(inputs, contexts, slopes_CN, off_CN, o_ND),
            _added(outputs, targets, slopes_CN.T, off_CN.T, h_CD),
            np.logaddexp(0, np.where(labels_N, -scores_CN, scores_CN)).sum(axis=1),
        )

    def holds(self, found: Matrices) -> bool:
        both = ((self.inputs, found.inputs_VS), (self.outputs, found.outputs_VS))
        return all(bool((np.abs(rows - exact) <= error).all()) for (exact, error), rows in both)


def _added(
    rows: np.ndarray, where: np.ndarray, slopes: np.ndarray, off: np.ndarray, by: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Add slopes @ by to some rows; return them and the bound of their error: each term is rounded twice."""
    moved, error, size = rows.copy(), np.zeros_like(rows), np.abs(rows)
    largest = (np.abs(slopes) + off) @ np.abs(by)
    np.add.at(moved, where, slopes @ by)
    np.add.at(size, where, largest)
    np.add.at(error, where, off @ np.abs(by) + len(by) * ROUNDING * largest)
    terms_V = len(by) * np.bincount(where, minlength=len(rows))
    return moved, error + terms_V[:, None] * ROUNDING * size


def single(groups: Groups) -> Iterator[Groups]:
    for number, (start, end) in enumerate(pairwise(groups.starts)):
        targets = groups.targets_GN[number : number + 1]
        yield Groups(targets, np.array([0, end - start], np.int32), groups.contexts_P[start:end])


@needs_library
@pytest.mark.parametrize("way", [learn, learn_numpy])
@settings(max_examples=25, deadline=None)
@given(st.integers(2, 120), st.integers(1, 40), st.integers(1, 14))
def test_both_ways_learn_the_same_vectors(
    way: Callable[..., Learnt], length: int, width: int, negatives: int
) -> None:
    tokens = text(length)
    groups = draw(sampler(tokens, negatives=negatives, subsample=0.1), pass_key(1, 0), tokens, 0)
    found, losses = first_matrices(40, width, 1), [np.zeros(0)]
    for number, group in enumerate(single(groups)):
        step = Step.of(found, group, RATE)
        way(found, group, RATE)
        assert step.holds(found), number
        losses += [step.losses_C] if number % LOSS_EVERY == 0 else []
    whole = first_matrices(40, width, 1)
    learnt = way(whole, groups, RATE)
    np.testing.assert_array_equal(whole.inputs_VS, found.inputs_VS)
    np.testing.assert_array_equal(whole.outputs_VS, found.outputs_VS)
    assert learnt.pairs == groups.pairs
    assert learnt.loss == pytest.approx(np.concatenate(losses).sum() / max(1, learnt.loss_pairs), rel=1e-5)
    assert not found.inputs_VS[:, width:].any()


@needs_library
@pytest.mark.parametrize("way", [learn, learn_numpy])
def test_a_negative_that_is_left_out_is_distinguished_from_rounding(way: Callable[..., Learnt]) -> None:
    tokens = text(120)
    groups = draw(sampler(tokens, negatives=14, subsample=0.1), pass_key(1, 0), tokens, 0)
    found = first_matrices(40, 16, 1)
    for number, group in enumerate(single(groups)):
        step, wrong = Step.of(found, group, RATE), replace(group, targets_GN=group.targets_GN.copy())
        wrong.targets_GN[0, np.flatnonzero(group.targets_GN[0] >= 0)[-1]] = -1
        way(found, wrong, RATE)
        assert not step.holds(found), number


def test_a_small_step_moves_vectors_down_the_gradient_of_the_loss() -> None:
    """The change of the loss of one group is that of its gradient, by finite differences."""
    groups = Groups(np.array([[3, 1, 2]], np.int32), np.array([0, 2], np.int32), np.array([4, 5], np.int32))
    before = first_matrices(6, 8, 1)
    before.inputs_VS[:] = np.random.default_rng(1).normal(size=before.inputs_VS.shape)
    before.outputs_VS[:] = np.random.default_rng(2).normal(size=before.outputs_VS.shape)

    def loss(inputs: np.ndarray) -> float:
        scores = inputs[[4, 5]].astype(float) @ before.outputs_VS[[3, 1, 2]].astype(float).T
        return float(np.logaddexp(0, -scores * np.array([1, -1, -1])).sum())

    rate = 1e-3
    moved, _, _ = changes(groups, before.inputs_VS[[4, 5]], before.outputs_VS[[1, 2, 3]], rate)
    for row, token in enumerate((4, 5)):
        for column in range(8):
            nudged = before.inputs_VS.copy()
            nudged[token, column] += 1e-2
            slope = (loss(nudged) - loss(before.inputs_VS)) / 1e-2
            assert moved[row, column] == pytest.approx(-rate * slope, abs=3e-5)


def test_changes_of_the_touched_rows_are_what_learning_does_to_the_whole() -> None:
    tokens = text(200)
    groups = draw(sampler(tokens), pass_key(1, 0), tokens, 0)
    whole, server = first_matrices(40, 16, 1), first_matrices(40, 16, 1)
    learn(whole, groups, 0.1)
    moved_in, moved_out, learnt = changes(
        groups, server.inputs_VS[groups.inputs], server.outputs_VS[groups.outputs], 0.1
    )
    server.inputs_VS[groups.inputs] += moved_in
    server.outputs_VS[groups.outputs] += moved_out
    np.testing.assert_allclose(server.inputs_VS, whole.inputs_VS, atol=1e-6)
    np.testing.assert_allclose(server.outputs_VS, whole.outputs_VS, atol=1e-6)
    assert learnt.pairs == groups.pairs


def test_one_thread_gives_the_same_bits_every_time_and_in_any_chunks() -> None:
    tokens = text(3000)
    tables, key = sampler(tokens), pass_key(1, 0)
    rates = np.linspace(0.1, 0.05, 6, dtype=np.float32)
    whole, again, parts = (first_matrices(40, 20, 1) for _ in range(3))
    for matrices in (whole, again):
        run(tables, matrices, key, tokens, 0, block=500, rates=rates, threads=1)
    for start in range(0, 3000, 1000):
        at = slice(start // 500, start // 500 + 2)
        run(tables, parts, key, tokens[start : start + 1000], start, block=500, rates=rates[at], threads=1)
    np.testing.assert_array_equal(whole.inputs_VS, again.inputs_VS)
    np.testing.assert_array_equal(whole.inputs_VS, parts.inputs_VS)


def test_without_the_library_a_run_is_the_same_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = text(1500)
    rates = np.full(3, 0.1, np.float32)
    one, two = first_matrices(40, 12, 1), first_matrices(40, 12, 1)
    quick = run(sampler(tokens), one, 7, tokens, 0, block=500, rates=rates, threads=1)
    monkeypatch.setattr(word2vec, "library", lambda: None)
    slow = run(sampler(tokens), two, 7, tokens, 0, block=500, rates=rates, threads=1)
    np.testing.assert_allclose(one.inputs_VS, two.inputs_VS, atol=1e-4)
    assert (quick.pairs, quick.loss) == (slow.pairs, pytest.approx(slow.loss, rel=1e-4))


def test_two_threads_learn_as_many_pairs_and_about_as_well() -> None:
    tokens = text(20_000)
    rates = np.full(20, 0.05, np.float32)
    learnt = []
    for threads in (1, 2):
        matrices = first_matrices(40, 16, 1)
        learnt.append(run(sampler(tokens), matrices, 7, tokens, 0, block=1000, rates=rates, threads=threads))
    assert learnt[0].pairs == learnt[1].pairs
    assert learnt[0].loss == pytest.approx(learnt[1].loss, rel=0.02)


def test_tokens_in_like_company_come_to_lie_close() -> None:
    """Tokens 1 and 2 stand for each other among 10 to 19, tokens 3 and 4 among 20 to 29."""
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(1500):
        which = int(generator.integers(0, 2))
        company = generator.integers(10 + 10 * which, 20 + 10 * which, 6)
        company[3] = 1 + 2 * which + int(generator.integers(0, 2))
        lines.append([*company, END])
    tokens = np.array(lines, np.int32).reshape(-1)
    matrices, tables = first_matrices(40, 16, 1), sampler(tokens, subsample=0)
    for number in range(3):
        blocks = -(-len(tokens) // 1000)
        rates = np.full(blocks, 0.05, np.float32)
        run(tables, matrices, pass_key(1, number), tokens, 0, block=1000, rates=rates, threads=1)
    vectors = matrices.inputs_VS / np.linalg.norm(matrices.inputs_VS, axis=1, keepdims=True)
    assert vectors[1] @ vectors[2] > 0.9
    assert vectors[3] @ vectors[4] > 0.9
    assert vectors[1] @ vectors[3] < 0.5
