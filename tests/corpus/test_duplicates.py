from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.corpus.clean import collapsed, fingerprint
from windlass.corpus.duplicates import BINS, bands_for, first_of_equals, first_of_similar, jaccard, sketch


def marked(texts: list[str], similarity: float = 0.85) -> list[bool]:
    plain = [collapsed(text) for text in texts]
    sizes = np.array([len(text) for text in plain], dtype=np.uint64)
    return first_of_similar(sketch(plain), similarity, sizes, plain.__getitem__).tolist()


def words(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(3, 9))) for _ in range(count)]


@given(st.lists(st.sampled_from("abcd"), max_size=12))
def test_the_first_of_equals_is_kept(letters: list[str]) -> None:
    prints = np.array([fingerprint(c.encode()) for c in letters], dtype=np.uint64).reshape(-1, 2)
    expected = [c not in letters[:i] for i, c in enumerate(letters)]
    assert first_of_equals(prints).tolist() == expected


@settings(max_examples=30)
@given(st.lists(st.binary(min_size=0, max_size=60), max_size=6))
def test_a_sketch_does_not_depend_on_its_neighbours(texts: list[bytes]) -> None:
    together = sketch(texts)
    for row, text in zip(together, texts, strict=True):
        assert np.array_equal(row, sketch([text])[0])


@pytest.mark.parametrize("changed", [20, 100, 300, 700])
def test_sketches_estimate_the_similarity(changed: int) -> None:
    one = words(1, 1000)
    other = words(2, changed) + one[changed:]
    a, b = " ".join(one).encode(), " ".join(other).encode()
    estimate = float((sketch([a])[0] == sketch([b])[0]).mean())
    assert estimate == pytest.approx(jaccard(a, b), abs=0.12)  # four standard deviations


def test_a_document_with_a_few_words_changed_is_dropped_and_a_different_one_stays() -> None:
    one = words(1, 800)
    near = [*one[:400], "changed", "here", *one[402:]]
    other = words(2, 800)
    assert marked([" ".join(t) for t in (one, other, near, other[:300])]) == [True, True, False, True]


def test_chinese_has_no_spaces_and_is_compared_all_the_same(poems_in_lines: list[str]) -> None:
    one = "".join(poems_in_lines)
    near = one.replace("明月", "朗月")
    assert marked([one, near, "".join(reversed(poems_in_lines[:2])), one[:20]]) == [True, False, True, True]


@pytest.fixture
def poems_in_lines(chinese: str) -> list[str]:
    return chinese.splitlines()


def test_short_texts_are_compared_outright() -> None:
    """Their sketches are rough: of many pairs at 0.77, some would pass for 0.85."""
    bases = [" ".join(words(seed, 9))[:30] for seed in range(60)]
    pairs = [(base, base[:-3] + "XYZ") for base in bases]
    assert max(jaccard(one.encode(), other.encode()) for one, other in pairs) < 0.85
    estimates = [np.equal(*sketch([one.encode(), other.encode()])).mean() for one, other in pairs]
    assert max(estimates) > 0.85
    assert all(marked([text for pair in pairs for text in pair]))


def test_similar_to_a_dropped_one_alone_is_no_reason() -> None:
    a = words(1, 1000)
    b = words(2, 60) + a[60:]
    c = words(2, 60) + words(3, 120)[60:] + a[120:]
    plain = [" ".join(text).encode() for text in (a, b, c)]
    assert jaccard(plain[0], plain[1]) > 0.85 > jaccard(plain[0], plain[2])
    assert jaccard(plain[1], plain[2]) > 0.85
    assert marked([text.decode() for text in plain]) == [True, False, True]


@pytest.mark.parametrize("similarity", [0.05, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99])
def test_bands_find_a_pair_at_the_threshold(similarity: float) -> None:
    bands, rows = bands_for(similarity)
    assert bands * rows <= BINS
    assert 1 - (1 - similarity**rows) ** bands >= 0.99


def test_no_documents_have_no_duplicates() -> None:
    assert marked([]) == []
    assert first_of_equals(np.zeros((0, 2), dtype=np.uint64)).tolist() == []
