"""The probability of whole sentences, from text: words between white space, and the end of the sentence.

This is the quick path to score much text with a word model; results equal `NgramModel.logprobs` of the ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windlass.models.ngram.model import NgramModel
from windlass.models.ngram.native import NativeVocabulary, cores, ours
from windlass.models.ngram.trie_numpy import Walk

# White space as Rust has it, which is what the tokenizers library cuts at; Python's own adds four separators.
WORD = re.compile("[^\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


class Sentences:
    """Scores texts as sentences of a model; `words` are spelled by id, and others are `unknown`."""

    def __init__(self, model: NgramModel, words: Sequence[str], unknown: int, *, threads: int = 0) -> None:
        self._model, self._unknown, self._threads = model, unknown, threads or cores()
        shared = ours()
        self._native = NativeVocabulary(shared, words, unknown) if shared and model.tree else None
        self._ids = {} if self._native else {word: i for i, word in enumerate(words)}

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the natural logarithm of the probability of each text, its end included."""
        return self.measure(texts)[0]

    def perplexity(self, texts: Sequence[str]) -> float:
        """Return the perplexity of all words of the texts together, the ends included."""
        logs, words = self.measure(texts)
        return float(np.exp(-logs.sum() / words.sum()))

    def measure(self, texts: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the scores, and how many words each text has, its end included."""
        if self._native is None or self._model.tree is None:
            return self._slowly(texts)
        lines = "\n".join(texts)
        if lines.count("\n") >= len(texts):  # a line feed is white space as any other
            lines = "\n".join(text.replace("\n", " ") for text in texts)
        logs, words = self._model.tree.sentences(self._native, lines.encode(), len(texts), self._threads)
        return logs * np.float64(np.log(10)), words

    def _slowly(self, texts: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        end = self._model.end
        rows = [[self._ids.get(w, self._unknown) for w in WORD.findall(text)] + [end] for text in texts]
        lengths = np.array([len(row) for row in rows], np.int64)
        walk, sums = Walk(self._model.levels, end, len(rows)), np.zeros(len(rows))
        walk.read(np.full(len(rows), end))
        for place in range(int(lengths.max(initial=0))):
            there = lengths > place
            column = np.array([row[place] if place < len(row) else 0 for row in rows])
            sums += walk.read(column, there)
        return sums * np.float64(np.log(10)), lengths
