from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.corpus.clean import fingerprint
from windlass.corpus.split import Pieces, divide, held_out, tail_chars
from windlass.spec.errors import BadInput
from windlass.spec.job import Corpus


def prints(texts: list[str]) -> np.ndarray:
    return np.array([fingerprint(text.encode()) for text in texts], dtype=np.uint64).reshape(-1, 2)


def pieces(*lengths: int) -> Pieces:
    sizes = np.array(lengths, dtype=np.uint64)
    count = np.arange(len(lengths), dtype=np.uint64)
    return Pieces(np.cumsum(sizes) - sizes, sizes, count, count)


@given(st.lists(st.text(min_size=1), min_size=2, max_size=30, unique=True), st.floats(0.001, 0.999))
def test_neither_part_is_empty(texts: list[str], share: float) -> None:
    held = held_out(prints(texts), share)
    assert held.any()
    assert not held.all()


def test_a_text_is_on_the_same_side_whatever_else_is_there() -> None:
    texts = [f"text {i}" for i in range(2000)]
    held = held_out(prints(texts), 0.1)
    assert 150 < held.sum() < 250
    assert np.array_equal(held[500:], held_out(prints(texts[500:]), 0.1))
    assert np.all(held_out(prints(texts), 0.2)[held])


def test_one_document_cannot_be_split_by_hash() -> None:
    with pytest.raises(BadInput, match="single document") as error:
        divide(pieces(100), prints(["a"]), np.zeros(1, np.uint64), Corpus(split="hash"))
    assert 'split = "tail"' in str(error.value.hint)


def test_a_few_documents_lose_their_tails_unless_the_job_says_otherwise() -> None:
    tails = np.full(3, 5, dtype=np.uint64)
    few = divide(pieces(100, 70, 50), prints(["a", "b", "c"]), tails, Corpus())
    assert [len(part) for part in few] == [3, 3]
    names = [str(i) for i in range(20)]
    enough = divide(pieces(*[100] * 20), prints(names), np.full(20, 5, dtype=np.uint64), Corpus())
    assert sum(len(part) for part in enough) == 20


def test_the_tail_of_each_document_is_held_out() -> None:
    tails = np.array([10, 0, 5], dtype=np.uint64)
    train, validation = divide(pieces(100, 7, 50), prints(["a", "b", "c"]), tails, Corpus(split="tail"))
    assert list(zip(train.start, train.text_bytes, strict=True)) == [(0, 90), (100, 7), (107, 45)]
    assert list(zip(validation.start, validation.text_bytes, strict=True)) == [(90, 10), (152, 5)]
    assert validation.source.tolist() == [0, 2]


def test_tails_of_nothing_are_reported() -> None:
    with pytest.raises(BadInput, match="too short"):
        divide(pieces(3), prints(["a"]), np.zeros(1, np.uint64), Corpus(split="tail"))


def test_a_tenth_of_shakespeare_is_the_well_known_tenth() -> None:
    assert 1_115_394 - tail_chars(1_115_394, 0.1) == 1_003_854
