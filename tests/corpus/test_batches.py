from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.corpus.batches import (
    DIGEST_CHUNK,
    digest_of,
    digest_of_range,
    divided,
    read_batch,
    read_windows,
    sample_count,
    share_of,
    windows_at,
)
from windlass.spec.errors import BadInput

seeds = st.integers(-(2**63), 2**64 - 1)


@settings(max_examples=60)
@given(st.one_of(st.integers(1, 5), st.integers(1, 3000)), seeds, st.integers(0, 10**6))
def test_every_epoch_is_a_permutation(samples: int, seed: int, epoch: int) -> None:
    positions = np.arange(epoch * samples, (epoch + 1) * samples)
    assert sorted(windows_at(positions, samples, seed).tolist()) == list(range(samples))


@pytest.mark.parametrize("samples", [2**32 + 1, 2**40, 2**52 - 3])
def test_large_numbers_of_samples_stay_inside_and_apart(samples: int) -> None:
    positions = np.concatenate([np.arange(1000), np.arange(samples - 1000, samples)])
    found = windows_at(positions, samples, 7)
    assert len(set(found.tolist())) == 2000
    assert found.min() >= 0
    assert found.max() < samples
    assert found.max() > samples // 2


@given(st.integers(1, 500), seeds, st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_a_position_has_the_same_window_alone_and_in_company(
    samples: int, seed: int, positions: list[int]
) -> None:
    together = windows_at(positions, samples, seed).tolist()
    assert together == [windows_at(p, samples, seed).item() for p in positions]


def test_the_order_differs_by_seed_and_by_epoch() -> None:
    orders = {tuple(windows_at(np.arange(e * 64, e * 64 + 64), 64, s)) for s in range(8) for e in range(8)}
    assert len(orders) == 64


def test_the_order_looks_random() -> None:
    """Neighbours in time are not neighbours in the text, and every place comes first about as often."""
    windows = windows_at(np.arange(10_000), 10_000, 3)
    assert abs(np.corrcoef(np.arange(10_000), windows)[0, 1]) < 0.05
    assert (np.abs(np.diff(windows)) == 1).sum() < 15
    firsts = Counter(int(windows_at(0, 5, seed)) for seed in range(1000))
    assert all(150 < firsts[place] < 250 for place in range(5))


def by_the_book(position: int, samples: int, seed: int) -> int:
    """The order as docs/formats/corpus.md states it, in plain integers."""
    m = 2**64 - 1

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & m
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & m
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & m
        return x ^ (x >> 31)

    epoch, x = divmod(position, samples)
    key = mix((mix(seed % 2**64) + epoch) & m)
    half = 1
    while 4**half < samples:
        half += 1
    while True:
        left, right = x >> half, x % 2**half
        for number in range(6):
            left, right = right, left ^ (mix((right + mix((key + number) & m)) & m) % 2**half)
        x = left << half | right
        if x < samples:
            return x


@settings(max_examples=60)
@given(st.integers(0, 10**15), st.integers(1, 10**12), seeds)
def test_the_order_is_the_one_of_the_book(position: int, samples: int, seed: int) -> None:
    assert windows_at(position, samples, seed).item() == by_the_book(position, samples, seed)


def test_the_order_never_changes() -> None:
    """A run that is resumed by a later version must see the samples it would have seen."""
    assert windows_at(np.arange(10), 10, 1).tolist() == [5, 6, 3, 0, 7, 8, 9, 4, 2, 1]
    assert windows_at(1_000_000_007, 123_456_789, 42).item() == 33423316


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Steps of a run: the size of each batch, and the weights of the workers that share it."""
    weights = st.lists(st.integers(0, 5), min_size=1, max_size=9).filter(any)
    return draw(st.lists(st.tuples(st.integers(1, 40), weights), min_size=1, max_size=30))


@settings(max_examples=60)
@given(stories(), st.integers(1, 50), seeds)
def test_every_sample_comes_once_an_epoch_through_any_resizes(
    steps: list[tuple[int, list[int]]], samples: int, seed: int
) -> None:
    consumed, seen = 0, list[int]()
    for batch, weights in steps:
        for share in divided(consumed, batch, weights):
            seen += windows_at(np.array(share, dtype=np.int64), samples, seed).tolist()
        consumed += batch
    assert len(seen) == consumed
    for epoch in range(0, consumed - samples + 1, samples):
        assert sorted(seen[epoch : epoch + samples]) == list(range(samples))
    last = seen[consumed - consumed % samples :]
    assert len(set(last)) == len(last)


@given(st.integers(0, 10**12), st.integers(0, 1000), st.lists(st.integers(0, 99), min_size=1).filter(any))
def test_shares_are_in_order_without_gaps_and_within_one_of_their_due(
    start: int, count: int, weights: list[int]
) -> None:
    shares = divided(start, count, weights)
    assert [p for share in shares for p in share] == list(range(start, start + count))
    for share, weight in zip(shares, weights, strict=True):
        assert abs(len(share) - count * weight / sum(weights)) < 1 + 1e-9


def test_equal_workers_have_equal_shares() -> None:
    assert [list(share_of(12, 6, rank, 3)) for rank in range(3)] == [[12, 13], [14, 15], [16, 17]]


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1, 1]])
def test_weights_that_divide_nothing_are_refused(weights: list[int]) -> None:
    with pytest.raises(BadInput, match="weights"):
        divided(0, 4, weights)


@pytest.mark.parametrize(("tokens", "samples"), [(9, 1), (16, 1), (17, 2), (24, 2), (25, 3)])
def test_a_window_needs_one_token_more_than_its_context(tokens: int, samples: int) -> None:
    assert sample_count(tokens, 8) == samples


def test_too_few_tokens_say_which_context_would_fit() -> None:
    with pytest.raises(BadInput, match=r"8 tokens are too few.*context 8") as error:
        sample_count(8, 8)
    assert error.value.hint is not None
    assert "at most 7" in error.value.hint


class Counting:
    """A part whose tokens are their own places."""

    def __len__(self) -> int:
        return 41

    def read(self, start: int, stop: int) -> np.ndarray:
        assert stop <= 41
        return np.arange(start, stop, dtype=np.uint16)


def test_a_batch_has_a_row_for_each_position() -> None:
    rows = read_batch(Counting(), range(10, 20), 4, seed=5)  # type: ignore[arg-type]
    assert rows.shape == (10, 5)
    assert rows.dtype == np.int64
    assert sorted(rows[:, 0].tolist()) == list(range(0, 40, 4))
    assert all(row.tolist() == list(range(row[0], row[0] + 5)) for row in rows)
    assert read_windows(Counting(), [3], 4).tolist() == [[12, 13, 14, 15, 16]]  # type: ignore[arg-type]


def test_the_digest_is_that_of_the_format_page() -> None:
    assert [digest_of([p]) for p in (0, 1, 2**40)] == [3793791033, 2433363436, 534606120]
    assert digest_of([]) == digest_of_range(5, 5) == 0


@given(st.integers(0, 2**50), st.integers(0, 400), st.integers(1, 7), st.randoms())
def test_digests_of_parts_in_any_order_add_up_to_that_of_the_range(
    first: int, count: int, workers: int, random: Random
) -> None:
    order = list(range(first, first + count))
    random.shuffle(order)
    parts = [order[rank::workers] for rank in range(workers)]
    assert sum(map(digest_of, parts)) % 2**48 == digest_of_range(first, first + count)


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=50, unique=True), st.integers(0, 2**50))
def test_a_lost_a_repeated_and_a_wrong_position_change_the_digest(positions: list[int], other: int) -> None:
    whole = digest_of(positions)
    assert digest_of(positions[1:]) != whole
    assert digest_of([*positions, positions[0]]) != whole
    assert (digest_of([other, *positions[1:]]) == whole) == (other == positions[0])


def test_a_long_range_is_digested_in_pieces() -> None:
    until = 2 * DIGEST_CHUNK + 3
    assert digest_of_range(0, until) == digest_of(np.arange(until))
    assert 0 <= digest_of_range(0, until) < 2**48
