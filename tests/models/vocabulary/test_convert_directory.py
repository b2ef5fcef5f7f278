"""A directory without tokenizer.json gets one that cuts texts as its own vocabulary file says."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from windlass.models.vocabulary.convert_directory import converted_tokenizer
from windlass.models.vocabulary.sentencepiece_model import read_sentencepiece
from windlass.models.vocabulary.tiktoken_file import byte_letters
from windlass.spec.errors import BadInput, Damaged

PIECES = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
]
WORDS = [
    ("▁a", -1.0, 1),
    ("ab", -2.0, 1),
    ("▁ab", -3.0, 1),
    ("▁", -4.0, 1),
    ("a", -5.0, 1),
    ("b", -6.0, 1),
    ("<u>", 0.0, 4),
]


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def proto(pieces: list[tuple[str, float, int]], algorithm: int, *, prefix: bool = True) -> bytes:
    """A ModelProto, written by hand."""
    out = b""
    for text, score, kind in pieces:
        out += message(
            1, message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind)
        )
    trainer = message(2, b"\x18" + varint(algorithm) + message(1, b"input.txt"))
    return out + trainer + message(3, b"\x18" + varint(int(prefix)))


def tokenizer(folder: Path, config: dict[str, Any] | None = None) -> tokenizers.Tokenizer:
    made = converted_tokenizer(folder, config or {})
    assert made is not None
    return tokenizers.Tokenizer.from_str(made.decode())


def test_sentencepiece_bpe_merges_the_best_score_first_and_falls_back_to_bytes(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(proto([*PIECES, *WORDS], 2))
    codec = tokenizer(tmp_path)
    ids = {text: number for number, (text, _, _) in enumerate([*PIECES, *WORDS])}
    assert codec.encode("ab").ids == [1, ids["▁ab"]]  # by way of ▁a, which is better than ab
    assert codec.encode("aab").ids == [1, ids["▁a"], ids["ab"]]
    assert codec.encode("bab", add_special_tokens=False).ids == [ids["▁"], ids["b"], ids["ab"]]
    assert codec.encode("<u>é", add_special_tokens=False).ids[0] == ids["<u>"]
    assert [3 + byte for byte in "é".encode()] == codec.encode("aé", add_special_tokens=False).ids[-2:]
    assert codec.decode(codec.encode("ab bé").ids) == "ab bé"


def test_a_unigram_model_takes_the_most_likely_cut(tmp_path: Path) -> None:
    pieces = [
        ("<unk>", 0.0, 2),
        ("▁", -1.0, 1),
        ("a", -3.0, 1),
        ("b", -3.0, 1),
        ("▁a", -2.0, 1),
        ("ab", -2.5, 1),
    ]
    (tmp_path / "spiece.model").write_bytes(proto(pieces, 1))
    assert tokenizer(tmp_path).encode("ab").ids == [1, 5]  # -3.5 is more than -5


def test_whether_bos_and_eos_are_put_around_is_what_the_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(proto([*PIECES, *WORDS], 2))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({
            "add_bos_token": False, "add_eos_token": True, "eos_token": {"content": "</s>"},
            "added_tokens_decoder": {"266": {"content": "<|turn|>", "special": True}},
        })
    )  # fmt: skip
    codec = tokenizer(tmp_path)
    assert codec.encode("<|turn|>").ids == [266, 2]


def test_a_tiktoken_file_merges_by_rank(tmp_path: Path) -> None:
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b" a", b"abc", b"cab"]
    lines = [base64.b64encode(token) + f" {rank}".encode() for rank, token in enumerate(tokens)]
    (tmp_path / "cl100k_base.tiktoken").write_bytes(b"\n".join(lines) + b"\n")
    codec = tokenizer(tmp_path)
    assert codec.encode("abc").ids == [258]
    assert codec.encode("a ab").ids == [97, 32, 256]  # ab is merged before the space and a could be
    assert codec.encode("a a").ids == [97, 257]
    assert codec.encode("xcab").ids == [120, 259]
    assert codec.decode(codec.encode("naïve\n").ids) == "naïve\n"
    (tmp_path / "cl100k_base.tiktoken").rename(tmp_path / "mystery.tiktoken")
    with pytest.raises(BadInput, match="does not say where it cuts"):
        converted_tokenizer(tmp_path, {"model_type": "enigma"})


def test_every_byte_has_a_letter_that_can_be_seen() -> None:
    letters = byte_letters()
    assert len(set(letters)) == 256
    assert (letters[32], letters[10], letters[65]) == ("Ġ", "Ċ", "A")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0a\xff\x01ab",
        b"\x0f",
        b"\x0a",
        b"\xff" * 20,
        proto([("a", 0.0, 1), ("a", 0.0, 1)], 2),
    ],
)
def test_damaged_files_are_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        read_sentencepiece(data, "tokenizer.model")


def test_word_models_are_refused_by_name() -> None:
    with pytest.raises(BadInput, match="words or characters"):
        read_sentencepiece(proto([("a", 0.0, 1)], 3), "tokenizer.model")


def test_a_directory_that_has_a_tokenizer_keeps_it(tmp_path: Path) -> None:
    assert converted_tokenizer(tmp_path, {}) is None
    (tmp_path / "tokenizer.model").write_bytes(proto(PIECES, 2))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert converted_tokenizer(tmp_path, {}) is None
