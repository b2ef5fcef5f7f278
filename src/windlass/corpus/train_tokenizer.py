"""Makes a tokenizer from text: a byte-level BPE, one token per character, or one per word.

Input: an iterator of texts. Output: a tokenizer.json that Hugging Face's `tokenizers` loads. Ids 0, 1, ...
are the special tokens, the end of a document first; with words they come last.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Inner

from windlass.corpus.tokenizer import SPECIAL, UNKNOWN, Tokenizer

# Words with the one mark or space before them, up to three digits, runs of marks with the line ends behind
# them, line ends, white space. A line feed never shares a piece with what follows it unless that is white
# space too, so text may be cut there (fast_tokenizer.py, tokenise.py).
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ANY_CHAR = r"[\s\S]"
# What is between white space as the library sees it: Python's \s would also cut at U+001C to U+001F.
WORD = re.compile("[^\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")

MIN_SAMPLE_BYTES = 8 << 20
MAX_SAMPLE_BYTES = 32 << 20
SAMPLE_BYTES_PER_TOKEN = 1 << 10


def sample_bytes(vocabulary: int) -> int:
    """Return how many bytes are enough to learn merges from: more barely changes them, but takes longer."""
    return min(MAX_SAMPLE_BYTES, max(MIN_SAMPLE_BYTES, vocabulary * SAMPLE_BYTES_PER_TOKEN))


def train_bpe(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Learn a byte-level BPE: every text can be written in it, and comes back exactly."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return Tokenizer(inner.to_str().encode())


def take_characters(texts: Iterable[str]) -> Tokenizer:
    """Give every character of the texts a token of its own; others become <|unknown|>."""
    seen: set[str] = set()
    for text in texts:
        seen.update(text)
    tokens = [*SPECIAL, UNKNOWN, *sorted(seen)]
    inner = Inner(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(ANY_CHAR), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([*SPECIAL, UNKNOWN])
    return Tokenizer(inner.to_str().encode())


def take_words(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Give the most frequent words between white space a token each; others become <|unknown|>.

    The special tokens are no words of the model, only added to it: a text that spells one out holds an
    unknown word, not the end of a document. So the library numbers them after the words.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(WORD.findall(text))
    for token in (*SPECIAL, UNKNOWN):
        counts.pop(token, None)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - len(SPECIAL) - 1]
    words = {word: i for i, word in enumerate([UNKNOWN, *ranked])}
    inner = Inner(models.WordLevel(words, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([UNKNOWN, *SPECIAL])
    return Tokenizer(inner.to_str().encode())


def kind_of(tokenizer: Tokenizer) -> str:
    """Return "bpe", "char" or "word" for our own tokenizers, whose text may be cut; else "other"."""
    data: dict[str, Any] = json.loads(tokenizer.json)
    if data.get("normalizer") is not None or data.get("pre_tokenizer") is None:
        return "other"
    if data["pre_tokenizer"] == {"type": "WhitespaceSplit"} and data["model"]["type"] == "WordLevel":
        return "word" if data["model"]["unk_token"] == UNKNOWN else "other"
    splits = data["pre_tokenizer"].get("pretokenizers", [data["pre_tokenizer"]])
    patterns = [split.get("pattern", {}).get("Regex") for split in splits]
    if patterns == [ANY_CHAR] and data["model"]["type"] == "WordLevel":
        return "char"
    return "bpe" if patterns == [PATTERN, None] and splits[1]["type"] == "ByteLevel" else "other"
