from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from windlass.http.errors import ApiError
from windlass.serve.gateway.text.detokenise import StopFilter, WindowDetokenizer, find_stop
from windlass.serve.gateway.text.tokenise import NumberText, TextCodec, TokenizerText, load_text, token_name
from windlass.spec.errors import BadInput

ALPHABET = st.text(alphabet="ab<|>", max_size=20)


@pytest.fixture(scope="module")
def byte_level(model_dir: Path) -> TextCodec:
    return load_text(model_dir)


def sentencepiece_like() -> TokenizerText:
    """A vocabulary with word marks and bytes for what it does not know, as Llama 2's."""
    marks = ["▁the", "▁fox", "▁", "a", "b"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *marks]
    vocabulary = {name: place for place, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return TokenizerText(tokenizer)


def joined(text: TextCodec, tokens: list[int]) -> str:
    detokenizer = text.detokenizer()
    return "".join([*(detokenizer.push(token) for token in tokens), detokenizer.flush()])


@given(tokens=st.lists(st.integers(0, 350), max_size=40))
def test_pieces_of_bytes_joined_are_the_whole_text(byte_level: TextCodec, tokens: list[int]) -> None:
    assert joined(byte_level, tokens) == byte_level.decode(tokens)


@given(content=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_no_piece_of_a_true_text_splits_a_character(byte_level: TextCodec, content: str) -> None:
    tokens = byte_level.encode(content, special=False, context=10_000)
    detokenizer = byte_level.detokenizer()
    pieces = [detokenizer.push(token) for token in tokens]
    assert "".join(pieces) == content
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in content


@given(words=st.lists(st.sampled_from(["the", "fox", "春花", "é", "a", "🦊"]), max_size=12))
def test_word_marks_and_byte_tokens_join_to_the_whole_text(words: list[str]) -> None:
    text = sentencepiece_like()
    tokens = text.encode(" ".join(words), special=False, context=10_000)
    detokenizer = text.detokenizer()
    pieces = [detokenizer.push(token) for token in tokens]
    assert "".join([*pieces, detokenizer.flush()]) == text.decode(tokens)
    assert all("\ufffd" not in piece for piece in pieces)


def test_bytes_that_never_become_a_character_are_not_held_for_ever() -> None:
    text = sentencepiece_like()
    lone = next(token for token in range(300) if text.token_bytes(token) == b"\xe4")
    detokenizer = text.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    assert any(detokenizer.push(lone) for _ in range(20))


def test_tokens_of_word_marks_and_bytes_are_named_as_they_read() -> None:
    text = sentencepiece_like()
    names = {token_name(text, token) for token in range(262)}
    assert {" the", " fox", "bytes:\\xe4", "A"} <= names


def test_special_tokens_are_silent_but_have_names(byte_level: TextCodec) -> None:
    assert joined(byte_level, [0, 2]) == ""
    assert token_name(byte_level, 2) == "<|user|>"


def test_part_of_a_character_is_named_by_its_bytes(byte_level: TextCodec) -> None:
    (token,) = [t for t in range(4, 260) if byte_level.token_bytes(t) == b"\xe4"]
    assert token_name(byte_level, token) == "bytes:\\xe4"


def test_a_token_beyond_the_tokenizer_has_no_text(byte_level: TextCodec) -> None:
    assert joined(byte_level, [99_999]) == ""


def test_a_text_that_cannot_fit_is_refused_without_being_tokenised(byte_level: TextCodec) -> None:
    with pytest.raises(ApiError, match="cannot fit a context of 8 tokens"):
        byte_level.encode("a" * 1_000_000, special=False, context=8)


def test_a_model_without_tokenizer_writes_numbers_and_refuses_text(tmp_path: Path) -> None:
    text = load_text(tmp_path)
    assert isinstance(text, NumberText)
    assert joined(text, [5, 17]) == " 5 17"
    with pytest.raises(ApiError, match="send token ids"):
        text.encode("dog", special=True, context=10)


def test_a_damaged_tokenizer_is_reported_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 5')
    with pytest.raises(BadInput, match=r"tokenizer\.json"):
        load_text(tmp_path)


@given(
    pieces=st.lists(ALPHABET, max_size=8),
    stops=st.lists(st.text(alphabet="ab<|>", min_size=1, max_size=4), max_size=4),
)
def test_stop_strings_cut_the_same_however_the_text_arrives(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    end = find_stop(whole, stops)
    stopper, shown, stopped = StopFilter(stops), "", False
    for piece in pieces:
        cut = stopper.push(piece)
        shown += cut.text
        if cut.stopped:
            stopped = True
            break
    if not stopped:
        shown += stopper.flush()
    assert stopped == (end is not None)
    assert shown == whole[:end]


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    stopper = StopFilter(["\nuser:"])
    assert stopper.push("hello\nus").text == "hello"
    assert stopper.push("ual").text == "\nusual"
    cut = stopper.push(" end\nuser: x")
    assert (cut.text, cut.stopped) == (" end", True)


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert find_stop("xabc", ["xabc", "ab"]) == 1
