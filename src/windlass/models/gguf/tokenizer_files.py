"""The vocabulary of a GGUF file to tokenizer.json, tokenizer_config.json and generation_config.json.

Input: the `tokenizer.*` metadata. Output: the texts of the three files, which `tokenizers` and transformers
read. Vocabularies are byte-level BPE ("gpt2"), SentencePiece BPE with scores ("llama") and unigram ("t5");
others are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from windlass.models.gguf.reader import GgufFile
from windlass.models.vocabulary.pretokenizers import PreTokenizer, pre_tokenizer_of
from windlass.models.vocabulary.scored_pieces import ScoredPieces, bpe_tokenizer, unigram_tokenizer
from windlass.models.vocabulary.special_tokens import (
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    added_tokens,
    surrounding,
)
from windlass.spec.errors import BadInput, Damaged, did_you_mean

TOKENIZER, TOKENIZER_CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep", "mask": "mask"}
"""Special tokens by their metadata (with its published misspelling), and their names at Hugging Face."""
ENDS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>",
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
    "</s>", "<｜end▁of▁sentence｜>",
))  # fmt: skip
"""Control tokens that end an answer; llama.cpp stops at them too, although metadata names only one or two."""
MAX_TEMPLATE = 1 << 20


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file, in the order of their ids."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    special: Mapping[str, int] = field(default_factory=dict)
    """Ids by Hugging Face's name without `_token`."""

    def named(self, name: str) -> tuple[str, int]:
        """Return a special token and its id."""
        return self.tokens[self.special[name]], self.special[name]


def tokenizer_files(file: GgufFile, rows: int) -> dict[str, bytes]:
    """Return the content of the files by name; a file without a vocabulary gives none.

    `rows` is the number of rows of the embedding, which the vocabulary may not exceed.
    """
    model = file.get("tokenizer.ggml.model", str, "none")
    if model in ("none", "no_vocab"):
        return {}
    maker = _MAKERS.get(model)
    if maker is None:
        raise BadInput(
            f"{file.path}: tokenizer '{model[:40]}' is not supported",
            hint=did_you_mean(model[:40], list(_MAKERS)),
        )
    vocabulary = _vocabulary(file)
    if len(vocabulary.tokens) > rows:
        raise Damaged(f"{file.path}: {len(vocabulary.tokens)} tokens, but the embedding has {rows} rows")
    tokenizer, begins, ends = maker(file, vocabulary)
    tokenizer["added_tokens"] = added_tokens(vocabulary.tokens, vocabulary.kinds)
    begins = file.get("tokenizer.ggml.add_bos_token", bool, begins) and "bos" in vocabulary.special
    ends = file.get("tokenizer.ggml.add_eos_token", bool, ends) and "eos" in vocabulary.special
    if begins or ends:
        first, last = (
            vocabulary.named(name) if wanted else None for name, wanted in (("bos", begins), ("eos", ends))
        )
        tokenizer["post_processor"] = surrounding(first, last)
    return {
        TOKENIZER: _json(tokenizer, indent=None),
        TOKENIZER_CONFIG: _json(_tokenizer_config(file, vocabulary, begins=begins, ends=ends)),
        GENERATION: _json(_generation(file, vocabulary)),
    }


def special_ids(file: GgufFile) -> dict[str, int]:
    """Return the ids of special tokens for config.json."""
    return {
        f"{name}_token_id": number
        for key, name in ROLES.items()
        if name in ("bos", "eos", "pad") and (number := _id(file, key)) is not None
    }


def _id(file: GgufFile, key: str) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    return value if isinstance(value, int) and value < 1 << 31 else None


def _vocabulary(file: GgufFile) -> Vocabulary:
    tokens = file.get("tokenizer.ggml.tokens", list)
    tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        raise Damaged(f"{file.path}: its vocabulary has a token twice")
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    listed = [NORMAL] * len(tokens) if kinds is None else np.asarray(kinds).tolist()
    if len(listed) != len(tokens):
        raise Damaged(f"{file.path}: {len(tokens)} tokens, but {len(listed)} types of tokens")
    special = {name: number for key, name in ROLES.items() if (number := _id(file, key)) is not None}
    wrong = [name for name, number in special.items() if number >= len(tokens)]
    if wrong:
        raise Damaged(f"{file.path}: its {wrong[0]} token is {special[wrong[0]]} of {len(tokens)} tokens")
    return Vocabulary(tokens, listed, special)


def _byte_level(file: GgufFile, vocabulary: Vocabulary) -> tuple[dict[str, Any], bool, bool]:
    """Byte-level BPE: merges in order, and the pre-tokenizer that the file names."""
    merges = []
    for line in file.get("tokenizer.ggml.merges", list):
        left, space, right = line[1:].partition(" ")
        if not space:
            raise Damaged(f"{file.path}: the merge {line[:40]!r} is not of two tokens")
        merges.append([line[0] + left, right])
    pre: PreTokenizer = pre_tokenizer_of(file.get("tokenizer.ggml.pre", str, "default"), str(file.path))
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    missing = next((pair for pair in merges if not {*pair, "".join(pair)} <= ids.keys()), None)
    if missing is not None:
        raise Damaged(f"{file.path}: the merge {' '.join(missing)[:40]!r} is not of tokens in the vocabulary")
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": pre.ignore_merges, "vocab": ids, "merges": merges,
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    parts = {"normalizer": pre.normalizer, "pre_tokenizer": pre.steps, "post_processor": level}
    return _tokenizer(model, **parts, decoder=level), pre.begins, False


def _sentencepiece(file: GgufFile, vocabulary: Vocabulary) -> tuple[dict[str, Any], bool, bool]:
    return bpe_tokenizer(_pieces(file, vocabulary)), True, False


def _unigram(file: GgufFile, vocabulary: Vocabulary) -> tuple[dict[str, Any], bool, bool]:
    charsmap = file.metadata.get("tokenizer.ggml.precompiled_charsmap", ())
    known = np.asarray(charsmap).astype(np.uint8).tobytes()
    return unigram_tokenizer(replace(_pieces(file, vocabulary), charsmap=known)), False, True


_MAKERS: dict[str, Callable[[GgufFile, Vocabulary], tuple[dict[str, Any], bool, bool]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "t5": _unigram,
}
"""Each returns the tokenizer, and whether it begins and ends a text with special tokens by default."""


def _pieces(file: GgufFile, vocabulary: Vocabulary) -> ScoredPieces:
    scores = np.asarray(file.metadata.get("tokenizer.ggml.scores", ()), dtype=np.float64)
    if len(scores) != len(vocabulary.tokens):
        raise Damaged(f"{file.path}: {len(vocabulary.tokens)} tokens, but {len(scores)} scores")
    return ScoredPieces(
        tokens=vocabulary.tokens,
        scores=scores.tolist(),
        merged=[kind in (NORMAL, UNUSED) for kind in vocabulary.kinds],
        unknown=vocabulary.special.get("unk", 0),
        prefix=file.get("tokenizer.ggml.add_space_prefix", bool, True),
    )


def _tokenizer(model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        **parts,
        "model": model,
    }


def _tokenizer_config(file: GgufFile, vocabulary: Vocabulary, *, begins: bool, ends: bool) -> dict[str, Any]:
    names = {f"{name}_token": vocabulary.tokens[number] for name, number in vocabulary.special.items()}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "add_bos_token": begins,
        "add_eos_token": ends,
        "clean_up_tokenization_spaces": False,
    }
    template = _chat_template(file)
    return config | ({} if template is None else {"chat_template": template})


def _chat_template(file: GgufFile) -> str | list[dict[str, str]] | None:
    """Return the template, or a list with the names of several."""
    default = file.metadata.get("tokenizer.chat_template")
    if default is not None and (not isinstance(default, str) or len(default) > MAX_TEMPLATE):
        raise Damaged(f"{file.path}: its chat template is not a text of at most {MAX_TEMPLATE} characters")
    prefix = "tokenizer.chat_template."
    others = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix) and isinstance(value, str)
    }
    if not others:
        return default
    named = ({"default": default} if default else {}) | others
    return [{"name": name, "template": template} for name, template in named.items()]


def _generation(file: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    """Every token that ends an answer: those that metadata names, and well-known control tokens."""
    stated = [_id(file, key) for key in ("eos", "eot", "eom")]
    found = [
        number
        for number, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED) and token in ENDS
    ]
    ends = list(dict.fromkeys(number for number in (*stated, *found) if number is not None))
    ids = {f"{name}_token_id": vocabulary.special.get(name) for name in ("bos", "pad")}
    return {**ids, "eos_token_id": ends[0] if len(ends) == 1 else ends or None}


def _json(value: Any, indent: int | None = 1) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=indent) + "\n").encode()
