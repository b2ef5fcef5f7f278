"""The quick path from text to token ids for our own tokenizers.

Encoding a word costs the library far more than looking it up, and a corpus repeats its words: the pieces
that the tokenizer's pattern cuts ASCII text into are encoded once each and remembered. Text in other
scripts goes through the library, whose tables of letters are the ones that count. The ids are those of
`Tokenizer.encode`, always; tests compare.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from windlass.corpus.tokenizer import UNKNOWN, Tokenizer
from windlass.corpus.train_tokenizer import WORD, kind_of

Ids = npt.NDArray[np.uint32]

MAX_WORDS = 1 << 20

# train_tokenizer.PATTERN as it reads on ASCII text.
_WORD = re.compile(
    r"[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", re.ASCII
)
# Where no piece of the pattern reaches across: a line feed, and behind it ASCII that is not white space, or
# a Chinese character. Others are left out only because libraries disagree on what is white space.
_CUT = re.compile("(?<=\n)(?=[!-~\u4e00-\u9fff])")


class BlockEncoder(Protocol):
    """Encodes blocks of texts; `cuts_at_lines` says whether a text may be encoded in parts."""

    cuts_at_lines: bool

    def encode(self, texts: Sequence[str]) -> list[Ids]: ...


def encoder_for(tokenizer: Tokenizer) -> BlockEncoder:
    """Return the quickest encoder that gives the tokenizer's own ids."""
    kind = kind_of(tokenizer)
    if kind == "char":
        return CharEncoder(tokenizer)
    if kind == "word":
        return SpaceEncoder(tokenizer)
    return WordEncoder(tokenizer) if kind == "bpe" else PlainEncoder(tokenizer)


class PlainEncoder:
    """Any tokenizer, through its library. Nothing is known of its rules, so texts stay whole."""

    cuts_at_lines = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._inner = tokenizer.inner

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        found = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.uint32) for one in found]


class CharEncoder:
    """One token per character: a table from code point to id."""

    cuts_at_lines = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.inner.get_vocab(with_added_tokens=False)
        self._ids = np.full(0x110000, vocabulary[UNKNOWN], dtype=np.uint32)
        for token, number in vocabulary.items():
            if len(token) == 1:
                self._ids[ord(token)] = number

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        return [self._ids[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")] for text in texts]


class SpaceEncoder:
    """One token per word between white space: a table from word to id."""

    cuts_at_lines = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._ids = tokenizer.inner.get_vocab(with_added_tokens=False)
        self._unknown = self._ids[UNKNOWN]

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        known, unknown = self._ids.get, self._unknown
        return [np.array([known(w, unknown) for w in WORD.findall(text)], dtype=np.uint32) for text in texts]


class WordEncoder:
    """Our byte-level BPE: ASCII text by remembered words, other text through the library."""

    cuts_at_lines = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._plain = PlainEncoder(tokenizer)
        self._words = _Words(self._plain)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        if all(text.isascii() for text in texts):
            return self._words.encode(texts)
        runs = [_runs(text) for text in texts]
        flat = list(itertools.chain.from_iterable(runs))
        ids = self._encode_runs(flat)
        ends = itertools.accumulate(len(r) for r in runs)
        return [_joined(ids[end - len(r) : end]) for r, end in zip(runs, ends, strict=True)]

    def _encode_runs(self, runs: list[str]) -> list[Ids]:
        ascii_ids = iter(self._words.encode([run for run in runs if run.isascii()]))
        other_ids = iter(self._plain.encode([run for run in runs if not run.isascii()]))
        return [next(ascii_ids if run.isascii() else other_ids) for run in runs]


class _Words:
    """A table from words to ids that grows with every new word."""

    _numbers: _Numbers
    _starts: npt.NDArray[np.int64]
    """Where the ids of each word begin in `_ids`, and where the last one's end."""
    _ids: Ids

    def __init__(self, plain: PlainEncoder) -> None:
        self._plain = plain
        self._forget()

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        if not texts:
            return []
        if len(self._numbers) > MAX_WORDS:
            self._forget()
        words = [_WORD.findall(text) for text in texts]
        counts = np.array([len(w) for w in words])
        look_up = self._numbers.__getitem__
        numbers = np.fromiter(
            map(look_up, itertools.chain.from_iterable(words)), dtype=np.int64, count=int(counts.sum())
        )
        self._learn()
        return self._gathered(numbers, np.cumsum(counts))

    def _gathered(self, numbers: npt.NDArray[np.int64], word_ends: npt.NDArray[np.int64]) -> list[Ids]:
        """Put the ids of words one after the other, and cut them at the ends of the texts."""
        lengths = self._starts[numbers + 1] - self._starts[numbers]
        ends = np.concatenate(([0], np.cumsum(lengths)))
        shift = np.repeat(self._starts[numbers] - ends[:-1], lengths)
        ids = self._ids[shift + np.arange(len(shift))]
        return np.split(ids, ends[word_ends[:-1]])

    def _learn(self) -> None:
        unseen = self._numbers.take_unseen()
        if not unseen:
            return
        found = self._plain.encode(unseen)
        lengths = np.array([len(ids) for ids in found])
        self._starts = np.concatenate((self._starts, self._starts[-1] + np.cumsum(lengths)))
        self._ids = np.concatenate((self._ids, *found))

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._starts = np.zeros(1, dtype=np.int64)
        self._ids = np.zeros(0, dtype=np.uint32)


class _Numbers(dict[str, int]):
    """Numbers words in the order of their first look-up."""

    def __init__(self) -> None:
        super().__init__()
        self._unseen: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self._unseen.append(word)
        return number

    def take_unseen(self) -> list[str]:
        unseen, self._unseen = self._unseen, []
        return unseen


def _runs(text: str) -> list[str]:
    """Cut a text into runs of lines, ASCII or not in turn."""
    if text.isascii():
        return [text]
    return ["".join(lines) for _, lines in itertools.groupby(_CUT.split(text), str.isascii)]


def _joined(ids: Sequence[Ids]) -> Ids:
    return ids[0] if len(ids) == 1 else np.concatenate(ids)
