from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from windlass.corpus.fast_tokenizer import encoder_for
from windlass.corpus.tokenizer import SPECIAL, UNKNOWN, Tokenizer, load_tokenizer
from windlass.corpus.train_tokenizer import kind_of, sample_bytes, take_characters, take_words, train_bpe
from windlass.spec.errors import BadInput, NotFound

from_any_script = st.text(
    st.one_of(
        st.characters(codec="utf-8"), st.sampled_from(" \n\r\t\v\f\x1c\x85\u2028'sS1½²Ⅷ_<|>明月。\u0301")
    )
)
ascii_text = st.text(st.one_of(st.characters(max_codepoint=127), st.sampled_from(" \n\r\tab1._'")))


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    text = "The windlass turned and the rope came up.\n    def f(x):\n        return x\n明月几时有？\n"
    return train_bpe([text * 20, "1234 don't I'm\r\n"], 400)


@pytest.fixture(scope="module")
def char() -> Tokenizer:
    return take_characters(["abc \n<|>end", "明月"])


@pytest.fixture(scope="module")
def word() -> Tokenizer:
    return take_words(["the rope and the bucket", "the rope , up and up <|end|>"], 12)


@given(text=from_any_script)
def test_a_byte_level_bpe_loses_nothing(bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text


@given(text=from_any_script)
def test_the_quick_way_gives_the_ids_of_the_library(bpe: Tokenizer, text: str) -> None:
    quick = encoder_for(bpe)
    assert [ids.tolist() for ids in quick.encode([text, "", text + "a"])] == [
        bpe.encode(text),
        [],
        bpe.encode(text + "a"),
    ]


@settings(max_examples=300)
@given(text=ascii_text)
def test_remembered_words_give_the_ids_of_the_library(bpe: Tokenizer, text: str) -> None:
    assert encoder_for(bpe).encode([text])[0].tolist() == bpe.encode(text)


@given(texts=st.lists(from_any_script, max_size=5))
def test_the_quick_way_to_characters_gives_the_ids_of_the_library(char: Tokenizer, texts: list[str]) -> None:
    assert [ids.tolist() for ids in encoder_for(char).encode(texts)] == [char.encode(t) for t in texts]


@given(texts=st.lists(from_any_script, max_size=5))
def test_the_quick_way_to_words_gives_the_ids_of_the_library(word: Tokenizer, texts: list[str]) -> None:
    texts = [*texts, "the rope"]
    assert [ids.tolist() for ids in encoder_for(word).encode(texts)] == [word.encode(t) for t in texts]


def test_words_are_the_most_frequent_ones_and_come_back_with_spaces_between(word: Tokenizer) -> None:
    assert kind_of(word) == "word"
    assert word.vocabulary == 12
    assert [word.token(i) for i in range(6)] == [UNKNOWN, "the", "and", "rope", "up", ","]
    assert word.decode(word.encode(" the\n\nrope  up ")) == "the rope up"
    assert word.decode(word.encode("the pump"), special=True) == f"the {UNKNOWN}"


def test_a_special_token_that_a_text_spells_out_is_an_unknown_word(word: Tokenizer) -> None:
    assert word.encode("up <|end|> up") == [4, 0, 4]
    assert word.end_id == 6
    assert word.special_ids == {0, *range(6, 12)}


def test_real_code_is_encoded_alike_both_ways(bpe: Tokenizer) -> None:
    texts = [Path(module.__file__ or "").read_text("utf-8") for module in (json, pickle, tokenizers)]
    quick = encoder_for(bpe)
    for _ in range(2):  # the second time every word is remembered
        assert [ids.tolist() for ids in quick.encode(texts)] == bpe.encode_batch(texts)


def test_words_beyond_the_limit_are_forgotten_and_learnt_again(
    bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.corpus.fast_tokenizer.MAX_WORDS", 10)
    quick = encoder_for(bpe)
    for start in range(0, 60, 20):
        text = " ".join(f"w{i}" for i in range(start, start + 20))
        assert quick.encode([text, text])[1].tolist() == bpe.encode(text)


def test_special_tokens_come_first_and_a_text_that_spells_one_is_text(
    bpe: Tokenizer, char: Tokenizer
) -> None:
    for tokenizer in (bpe, char):
        assert [tokenizer.id_of(token) for token in SPECIAL] == list(range(len(SPECIAL)))
        assert (tokenizer.end_id, tokenizer.pad_id, tokenizer.mask_id) == (0, 1, 2)
        ids = tokenizer.encode("<|end|>")
        assert 0 not in ids
        assert tokenizer.decode(ids) == "<|end|>"
        assert tokenizer.encode("<|end|>", markers=True) == [0]
        assert tokenizer.decode([0]) == ""
        assert tokenizer.decode([0], special=True) == "<|end|>"


def test_characters_are_tokens_and_strangers_are_unknown(char: Tokenizer) -> None:
    assert char.decode(char.encode("bad 明\n")) == "bad 明\n"
    assert char.vocabulary == len(SPECIAL) + 1 + len(set("abc \n<|>end明月"))
    assert char.encode("字") == [char.id_of(UNKNOWN)]


@given(text=from_any_script)
def test_the_bytes_of_tokens_make_up_the_text(bpe: Tokenizer, text: str) -> None:
    assert b"".join(bpe.token_bytes(i) for i in bpe.encode(text)) == text.encode()


def test_a_tokenizer_is_the_same_after_a_round_trip(bpe: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(bpe.json)
    for other in (load_tokenizer(tmp_path), load_tokenizer(tmp_path / "tokenizer.json")):
        assert other.digest == bpe.digest
        assert other.encode("The rope") == bpe.encode("The rope")
    assert kind_of(load_tokenizer(tmp_path)) == "bpe"


def test_a_vocabulary_has_the_size_requested(english: str, chinese: str) -> None:
    assert train_bpe([english, chinese], 320).vocabulary == 320


def given_tokenizer(end: str) -> bytes:
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens([end, "[MASK]"])
    return inner.to_str().encode()


@pytest.mark.parametrize("end", ["<|endoftext|>", "</s>", "[SEP]"])
def test_a_given_tokenizer_is_used_as_it_is(end: str) -> None:
    tokenizer = Tokenizer(given_tokenizer(end))
    assert tokenizer.end_id == tokenizer.pad_id == tokenizer.id_of(end)
    assert tokenizer.mask_id == tokenizer.id_of("[MASK]")
    assert kind_of(tokenizer) == "other"
    assert encoder_for(tokenizer).encode(["a b", "b"])[0].tolist() == [0, 1]
    assert not encoder_for(tokenizer).cuts_at_lines


@pytest.mark.parametrize("named", ["a", {"content": "a"}])
def test_a_config_next_to_the_tokenizer_names_its_end(tmp_path: Path, named: object) -> None:
    (tmp_path / "tokenizer.json").write_bytes(given_tokenizer("</s>"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    assert load_tokenizer(tmp_path).end_id == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a tokenizer.json"),
        (b"\xff\xfe", "not a tokenizer.json"),
        (b"[1]", "not a JSON object"),
        (b'{"model": {"type": "Odd"}}', "that can be used"),
        (given_tokenizer("stop"), "no token that ends a text"),
    ],
)
def test_a_broken_tokenizer_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Tokenizer(data, where="x/tokenizer.json")


def test_a_missing_tokenizer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such tokenizer"):
        load_tokenizer(tmp_path / "none.json")


def test_half_a_character_is_refused(bpe: Tokenizer) -> None:
    with pytest.raises(BadInput, match="surrogate"):
        bpe.encode("ab\ud800")


@pytest.mark.parametrize(("vocabulary", "mebibytes"), [(260, 8), (8192, 8), (16384, 16), (200_000, 32)])
def test_larger_vocabularies_learn_from_more_text(vocabulary: int, mebibytes: int) -> None:
    assert sample_bytes(vocabulary) == mebibytes << 20


def test_transformers_loads_what_we_make(bpe: Tokenizer, char: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs windlass[bench]")
    for tokenizer in (bpe, char):
        (tmp_path / "tokenizer.json").write_bytes(tokenizer.json)
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
        ids = tokenizer.encode("abc 明")
        assert theirs.encode("abc 明", add_special_tokens=False) == ids
        assert np.max(ids) < tokenizer.vocabulary
