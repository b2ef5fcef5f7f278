"""Our skip-gram compared with gensim's: `python -m windlass.lab.torch.word2vec_bench`.

The same sentences, vocabulary, width, distance, negatives, subsampling, rate, passes and threads. In every
round each trains once from scratch, and ratios are taken round by round; their median counts. The quality of
vectors is measured by nearest words: how many related words are among a word's ten nearest (categories.toml),
how often its plural is, and how far the two agree, compared with the agreement of two runs of gensim.
"""

from __future__ import annotations

import importlib.util
import re
import statistics
import sysconfig
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.word2vec import Sampler, Word2VecOptions, first_matrices, pass_key, run
from windlass.plan.local.machine import usable_cores
from windlass.spec.errors import BadInput
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.train.word2vec.learner import BLOCK_TOKENS, MIN_RATE, RATE

WIDTH, EPOCHS, MIN_COUNT, NEAREST = 100, 5, 5, 10
WORDS = 1_000_000
SENTENCE_WORDS = 1000
AGREED = 300
"""Number of words whose neighbours are compared: the most frequent after the first hundred."""
_WORD = re.compile(r"[^\W\d_]\w*", re.UNICODE)

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Word2VecBenchText:
    """Sentences of known words, as both implementations read them."""

    words: list[str]
    """Words by id, most frequent first; the end of a sentence is one more id."""
    sentences: list[list[str]]
    tokens: NDArray[np.int32]

    @property
    def length(self) -> int:
        return sum(map(len, self.sentences))


def bench_word2vec(repeats: int, paths: Sequence[Path], max_words: int) -> dict[str, Any]:
    """Measure, and return the figures."""
    if importlib.util.find_spec("gensim") is None:
        raise BadInput("the peer, gensim, is not installed", hint="pip install 'windlass[bench]'")
    text = read_text(paths, max_words)
    rounds: dict[int, list[tuple[float, float]]] = {}
    ours, theirs = list[Vectors](), list[Vectors]()
    for threads in sorted({1, usable_cores()}):
        for number in range(repeats):
            emit(_progress(threads, number, repeats))
            one, own_s = learn_ours(text, threads, seed=number + 1)
            other, their_s = learn_gensim(text, threads, seed=number + 1)
            rounds.setdefault(threads, []).append((own_s, their_s))
            if threads == 1:
                ours.append(one)
                theirs.append(other)
    figures = {**_speeds(text, rounds), **_qualities(text, ours, theirs)}
    return {"figures": figures, "words": text.length, "vocabulary": len(text.words), "rounds": rounds}


def read_text(paths: Sequence[Path], max_words: int) -> Word2VecBenchText:
    """Read sentences: lines of the given files, or pieces of Python's standard library."""
    found, total = list[list[str]](), 0
    for sentence in _sentences(paths):
        found.append(sentence)
        total += len(sentence)
        if total >= max_words:
            break
    counts = Counter(word for sentence in found for word in sentence)
    words = [word for word, count in counts.most_common() if count >= MIN_COUNT]
    if len(words) < AGREED:
        raise BadInput(f"the text has {len(words)} words that occur {MIN_COUNT} times; too few to compare")
    numbers = {word: number for number, word in enumerate(words)}
    known = [kept for kept in ([w for w in sentence if w in numbers] for sentence in found) if kept]
    tokens = [number for sentence in known for number in (*(numbers[w] for w in sentence), len(words))]
    return Word2VecBenchText(words, known, np.array(tokens, np.int32))


def learn_ours(text: Word2VecBenchText, threads: int, seed: int) -> tuple[Vectors, float]:
    """Return our vectors of all words, and the training seconds."""
    counts, tokens = np.bincount(text.tokens), text.tokens
    sampler, matrices = (
        Sampler(counts, len(text.words), Word2VecOptions()),
        first_matrices(len(counts), WIDTH, seed),
    )
    begin = time.perf_counter()
    for number in range(EPOCHS):
        starts = np.arange(0, len(tokens), BLOCK_TOKENS)
        done = (number * len(tokens) + starts) / (EPOCHS * len(tokens))
        rates = (RATE * np.maximum(1 - done, MIN_RATE)).astype(np.float32)
        run(
            sampler, matrices, pass_key(seed, number), tokens, 0,
            block=BLOCK_TOKENS, rates=rates, threads=threads,
        )  # fmt: skip
    seconds = time.perf_counter() - begin
    return matrices.inputs_VS[: len(text.words), :WIDTH], seconds


def learn_gensim(text: Word2VecBenchText, threads: int, seed: int) -> tuple[Vectors, float]:
    """The same with gensim and the same settings; its vocabulary is built before the clock starts."""
    from gensim.models import Word2Vec

    options = Word2VecOptions()
    model = Word2Vec(
        vector_size=WIDTH, window=options.distance, min_count=1, sample=options.subsample, sg=1, hs=0,
        negative=options.negatives, ns_exponent=options.power, alpha=RATE, min_alpha=RATE * MIN_RATE,
        workers=threads, seed=seed,
    )  # fmt: skip
    model.build_vocab(text.sentences)
    begin = time.perf_counter()
    model.train(text.sentences, total_examples=len(text.sentences), epochs=EPOCHS)
    seconds = time.perf_counter() - begin
    return np.stack([model.wv[word] for word in text.words]), seconds


def near_words(vectors: Vectors, count: int = NEAREST) -> NDArray[np.int64]:
    """Return the nearest words of every word, by cosine."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found = np.empty((len(unit), count), np.int64)
    for start in range(0, len(unit), 1024):
        cosines = unit[start : start + 1024] @ unit.T
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = -2
        found[start : start + 1024] = np.argsort(-cosines, axis=1)[:, :count]
    return found


def kin_recall(words: Sequence[str], near: NDArray[np.int64]) -> float:
    """Return the share of a word's related words among its nearest, averaged over words that have any."""
    shares = []
    for members in _kinds(words):
        for member in members:
            kin = set(members) - {member}
            shares.append(len(kin & set(near[member].tolist())) / min(len(kin), near.shape[1]))
    return statistics.fmean(shares)


def plural_recall(words: Sequence[str], near: NDArray[np.int64]) -> float:
    """Return how often the plural of a word is among its nearest; adding an s counts as plural."""
    numbers = {word: number for number, word in enumerate(words)}
    pairs = [(numbers[w], numbers[f"{w}s"]) for w in words if len(w) > 3 and f"{w}s" in numbers]
    return statistics.fmean(plural in near[word] for word, plural in pairs)


def agreement(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return the share of common nearest words, over frequent words."""
    rows = range(min(100, len(one) // 2), min(100 + AGREED, len(one)))
    return statistics.fmean(len(set(one[r]) & set(other[r])) / one.shape[1] for r in rows)


def _kinds(words: Sequence[str]) -> Iterator[list[int]]:
    table = tomllib.loads((resources.files(__package__) / "categories.toml").read_text())
    numbers = {word: number for number, word in enumerate(words)}
    for members in table.values():
        known = [numbers[word] for word in members if word in numbers]
        if len(known) >= 3:
            yield known


def _sentences(paths: Sequence[Path]) -> Iterator[list[str]]:
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").lower().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: cannot be read as text: {error}") from None
        yield from filter(None, (_WORD.findall(line) for line in lines))
    if not paths:
        folder = Path(sysconfig.get_path("stdlib"))
        for file in sorted(folder.rglob("*.py")):
            if "site-packages" not in file.parts:
                found = _WORD.findall(file.read_text(encoding="utf-8", errors="replace").lower())
                yield from (found[at : at + SENTENCE_WORDS] for at in range(0, len(found), SENTENCE_WORDS))


def _speeds(text: Word2VecBenchText, timings: dict[int, list[tuple[float, float]]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for threads, rounds in timings.items():
        name = f"{threads}_thread" + ("s" if threads > 1 else "")
        words = EPOCHS * text.length
        figures[f"words_per_s_{name}"] = statistics.median(words / own for own, _ in rounds)
        figures[f"gensim_words_per_s_{name}"] = statistics.median(words / their for _, their in rounds)
        figures[f"times_gensim_{name}"] = statistics.median(their / own for own, their in rounds)
    return figures


def _qualities(text: Word2VecBenchText, ours: list[Vectors], theirs: list[Vectors]) -> dict[str, float]:
    own, their = [near_words(one) for one in ours], [near_words(one) for one in theirs]
    drawn = np.random.default_rng(1).integers(0, len(text.words), own[0].shape)
    figures = {
        "kin_recall": statistics.fmean(kin_recall(text.words, near) for near in own),
        "gensim_kin_recall": statistics.fmean(kin_recall(text.words, near) for near in their),
        "chance_kin_recall": kin_recall(text.words, drawn),
        "plural_recall": statistics.fmean(plural_recall(text.words, near) for near in own),
        "gensim_plural_recall": statistics.fmean(plural_recall(text.words, near) for near in their),
        "agreement_with_gensim": statistics.fmean(map(agreement, own, their)),
    }
    if len(their) > 1:
        figures["agreement_of_gensim_with_itself"] = agreement(their[0], their[1])
        figures["agreement_with_itself"] = agreement(own[0], own[1])
    return figures


def _progress(threads: int, done: int, repeats: int) -> dict[str, Any]:
    stage = "1 thread" if threads == 1 else f"{threads} threads"
    return {"event": "progress", "stage": stage, "done": done, "total": repeats, "unit": "rounds"}


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.lab.torch.word2vec_bench")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--text", type=Path, action="append", default=[])
    parser.add_argument("--words", type=int, default=WORDS)
    args = parser.parse_args(argv)
    emit({"done": bench_word2vec(args.repeats, args.text, args.words)})
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
