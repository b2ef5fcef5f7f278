from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.corpus.clean import clean_block, encodable, fingerprint, normalised, refusal, repetition
from windlass.corpus.readers import Document
from windlass.spec.job import Clean, Corpus


@given(st.text())
def test_normalised_text_is_nfc_without_control_characters_and_stays_so(text: str) -> None:
    once = normalised(text)
    assert unicodedata.is_normalized("NFC", once)
    assert not any(unicodedata.category(c) == "Cc" for c in once if c not in "\n\t")
    assert normalised(once) == once


def test_line_ends_become_line_feeds_and_tabs_stay() -> None:
    assert normalised("a\r\nb\rc\td\x00\x0ce\x9f") == "a\nb\nc\tde"


@given(st.text(st.characters(codec=None, categories=["L", "Cs", "Zs"])))
def test_any_text_can_be_written_as_utf8(text: str) -> None:
    encodable(text).encode()


def test_two_halves_of_a_pair_become_the_character() -> None:
    assert encodable("\ud83d\ude00 \ud83d") == "😀 \ufffd"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t ", "empty"),
        ("short", "too short"),
        ("x" * 101, "too long"),
        ("ha\n" * 20, "repetitive"),
        ("a line\nanother line\n", None),
        ("一二三四五六七八", None),
    ],
)
def test_each_rule_has_its_reason(text: str, reason: str | None) -> None:
    assert refusal(text, 8, 100, 0.9) == reason


def test_repetition_is_the_share_of_lines_that_repeat() -> None:
    assert repetition("a\nb\n\nc\n") == 0
    assert repetition("a\na\na\nb") == pytest.approx(0.5)


def test_a_block_keeps_text_lengths_and_places_together(chinese: str, english: str) -> None:
    block = [Document(3, 1, english), Document(3, 2, "tiny"), Document(4, 9, chinese)]
    found = clean_block(block, Corpus(split="tail", validation_share=0.25))
    assert found.text == (english + chinese).encode()
    assert found.text_bytes.tolist() == [len(english.encode()), len(chinese.encode())]
    assert found.chars.tolist() == [len(english), len(chinese)]
    assert (found.source.tolist(), found.number.tolist()) == ([3, 4], [1, 9])
    assert found.sketches.shape == (2, 128)
    assert found.dropped == {"too short": 1}
    held = chinese.encode()[-int(found.tail_bytes[1]) :].decode()
    assert chinese.endswith(held)
    assert abs(len(held) - len(chinese) / 4) <= 1


def test_fingerprints_overlook_white_space_alone() -> None:
    corpus = Corpus(clean=Clean(min_chars=1, duplicates="exact"))
    texts = ["one two", "one\n  two ", "one too"]
    found = clean_block([Document(0, i, text) for i, text in enumerate(texts)], corpus)
    assert np.array_equal(found.fingerprint[0], found.fingerprint[1])
    assert not np.array_equal(found.fingerprint[0], found.fingerprint[2])
    assert len(found.sketches) == 0


def test_a_fingerprint_never_changes() -> None:
    """The split and the duplicates of every corpus hang on it."""
    assert fingerprint(b"windlass") == (3689947062019043234, 11467728772484863044)
