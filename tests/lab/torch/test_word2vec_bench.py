"""What the bench asks of vectors, where the answer is known; and the bench itself, in a small form."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from windlass.lab.torch.word2vec_bench import (
    agreement,
    bench_word2vec,
    kin_recall,
    near_words,
    plural_recall,
    read_text,
)
from windlass.spec.errors import BadInput


def test_the_nearest_words_leave_out_the_word_itself() -> None:
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [-1, 0]], np.float32)
    assert near_words(vectors, 1)[:, 0].tolist()[:4] == [1, 0, 3, 2]


def test_kin_are_recalled_where_they_lie_together_and_not_where_they_do_not() -> None:
    words = ["monday", "tuesday", "friday", "red", "blue", "green", "unknown"]
    together = np.eye(3, dtype=np.float32)[[0, 0, 0, 1, 1, 1, 2]]
    assert kin_recall(words, near_words(together, 2)) == 1.0
    apart = near_words(np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2, 2]], 1)
    assert kin_recall(words, apart) == 0.0


def test_plurals_are_words_with_an_s() -> None:
    words = ["house", "houses", "tree", "trees"]
    vectors = np.eye(3, dtype=np.float32)[[0, 0, 1, 2]]
    assert plural_recall(words, near_words(vectors, 1)) == 0.5


def test_agreement_is_the_share_of_neighbours_in_common() -> None:
    near = np.arange(400)[:, None] + np.array([[1, 2, 3, 4]])
    assert agreement(near, near) == 1.0
    assert agreement(near, near + 2) == 0.5
    assert agreement(near, near + 9) == 0.0


def test_a_text_of_few_words_or_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "few.txt"
    file.write_text("one two three\n" * 9)
    with pytest.raises(BadInput, match="3 words that occur 5 times"):
        read_text([file], 10**6)
    with pytest.raises(BadInput, match="cannot be read as text"):
        read_text([tmp_path / "none.txt"], 10**6)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("gensim") is None, reason="gensim is not installed")
def test_both_learn_from_the_standard_library_what_chance_does_not_know() -> None:
    found = bench_word2vec(1, [], 60_000)["figures"]
    assert found["kin_recall"] > 3 * found["chance_kin_recall"]
    assert found["gensim_kin_recall"] > 3 * found["chance_kin_recall"]
    assert found["agreement_with_gensim"] > 0.1
    assert found["times_gensim_1_thread"] > 0
