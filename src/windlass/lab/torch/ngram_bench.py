"""n-gram models compared with KenLM, in one run: equal perplexity, speed, and the memory bound.

    texts of words      orders 3 and 5, with and without pruning: perplexity on held-out text, build speed
    scoring             sentences in a list of Python strings -> their probabilities, words a second
    the default corpus  order 5 on our tokens: seconds, and peak memory, against the bound

Ratios are ours to KenLM's in speed (more is better) and in perplexity (1 is the same).
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from windlass.corpus.build import build_corpus
from windlass.corpus.corpus_dir import load_corpus
from windlass.lab.torch.kenlm_peer import KenLM, find_kenlm
from windlass.models.ngram.files import load, save_model
from windlass.models.ngram.model import NgramModel
from windlass.models.ngram.native import cores
from windlass.models.ngram.sentences import Sentences
from windlass.spec.job import Corpus
from windlass.spec.protocol.entrypoint import emit
from windlass.spec.shape import NgramShape
from windlass.store.manifest import DirectoryWriter, load_manifest
from windlass.store.store_dir import StoreDir
from windlass.train.ngram.blocks import Packing
from windlass.train.ngram.build import Build
from windlass.train.ngram.settings import CountSettings
from windlass.train.ngram.source import ArraySource, CorpusSource, TokenSource

SHARED = Path("../shared/data")
MEMORY = 1 << 30
SCORED_WORDS = 400_000
LOOK_EVERY_S = 0.01
CASES = ((3, ()), (3, (0, 0, 1)), (5, ()), (5, (0, 0, 1)))


@dataclass(frozen=True)
class NgramBenchText:
    """Lines of words for training, and held-out ones."""

    name: str
    train: list[str]
    held_out: list[str]


def bench_ngram(repeats: int) -> dict[str, Any]:
    """Measure everything; KenLM is located first, so that its absence is reported at once."""
    peer = find_kenlm()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-ngram-") as name:
        folder = Path(name)
        for text in texts():
            for order, prune in CASES:
                figures |= compared(peer, text, order, prune, folder / f"{text.name}-{order}-{len(prune)}")
            figures |= _raced(peer, text, folder / f"{text.name}-5-0", repeats)
        figures |= _default_corpus(peer, folder)
    return {"figures": {name: round(value, 6) for name, value in figures.items()}}


def texts() -> Iterator[NgramBenchText]:
    """Yield Shakespeare and WikiText if they exist, else Python's documentation."""
    shakespeare = SHARED / "tinyshakespeare.txt"
    if not shakespeare.exists():
        from pydoc_data.topics import topics

        yield _divided("pydoc", "\n".join(topics.values()))
        return
    yield _divided("shakespeare", shakespeare.read_text("utf-8"))
    train, held_out = ((SHARED / f"wikitext2-{part}.txt").read_text("utf-8") for part in ("valid", "test"))
    yield NgramBenchText("wikitext", lines_of(train), lines_of(held_out))


def _divided(name: str, text: str) -> NgramBenchText:
    lines = lines_of(text)
    boundary = len(lines) * 9 // 10
    return NgramBenchText(name, lines[:boundary], lines[boundary:])


def lines_of(text: str) -> list[str]:
    """Return non-empty lines; KenLM's special words are escaped."""
    for symbol in ("<unk>", "<s>", "</s>"):
        text = text.replace(symbol, f"({symbol[1:-1]})")
    return [line for line in text.split("\n") if line.strip()]


def word_ids(lines: Sequence[str]) -> tuple[ArraySource, list[str]]:
    """Number the words in order of appearance, after </s> (0) and <unk> (1)."""
    ids = {"</s>": 0, "<unk>": 1}
    tokens = [i for line in lines for i in (*(ids.setdefault(w, len(ids)) for w in line.split()), 0)]
    return ArraySource(np.array(tokens, np.uint32)), list(ids)


def build_words(
    lines: Sequence[str], order: int, prune: Sequence[int], folder: Path
) -> tuple[NgramModel, list[str]]:
    """Build a model from lines of words."""
    source, words = word_ids(lines)
    return _built(source, Packing(order, len(words), 0), prune, folder), words


def _built(source: TokenSource, packing: Packing, prune: Sequence[int], folder: Path) -> NgramModel:
    order = packing.order
    given = tuple(prune) or (0,)
    settings = CountSettings(packing, given + given[-1:] * (order - len(given)), MEMORY, cores())
    build = Build(source, settings, folder / "work")
    made = build.run()
    assert made is not None
    shape = NgramShape(vocabulary=packing.vocabulary, context=256, order=order, ngrams=made.ngrams(order))
    writer = DirectoryWriter(StoreDir(folder / "model"))
    save_model(writer, shape, made.promises(), special_tokens={"eos_token_id": packing.end})
    writer.commit()
    build.clear()
    return load(folder / "model")


def compared(
    peer: KenLM, text: NgramBenchText, order: int, prune: Sequence[int], folder: Path
) -> dict[str, float]:
    _progress(f"{text.name} order {order}{' pruned' if prune else ''}")
    folder.mkdir()
    plain = folder / "text"
    plain.write_text("\n".join(text.train) + "\n", "utf-8")
    began = time.perf_counter()
    model, words = build_words(text.train, order, prune, folder)
    seconds = time.perf_counter() - began
    theirs = peer.estimate(plain, order, prune, folder / "theirs.arpa")
    other = peer.load(theirs.arpa)
    logs, counts = Sentences(model, words, 1).measure(text.held_out)
    found = np.array([sum(score[0] for score in other.full_scores(line)) for line in text.held_out])
    total, name = counts.sum(), f"{text.name}_{order}{'_pruned' if prune else ''}"
    return {
        f"{name}_perplexity": float(np.exp(-logs.sum() / total)),
        f"{name}_perplexity_ratio": float(np.exp(-logs.sum() / total) / 10 ** (-found.sum() / total)),
        f"{name}_sentence_difference": float(np.abs(logs / np.log(10) - found).max()),
        f"{name}_build_speed_ratio": theirs.seconds / seconds,
    }


def _raced(peer: KenLM, text: NgramBenchText, folder: Path, repeats: int) -> dict[str, float]:
    """Score the same sentences, from Python strings to Python numbers."""
    _progress(f"{text.name} scoring")
    model, words = load(folder / "model"), word_ids(text.train)[1]
    other = peer.load(folder / "theirs.arpa")
    lines = list(text.held_out)
    while sum(map(len, lines)) < 6 * SCORED_WORDS:
        lines += text.held_out
    one, all_ = (Sentences(model, words, 1, threads=n) for n in (1, 0))
    count = int(one.measure(lines)[1].sum())
    times = _median(
        repeats,
        lambda: [other.score(line) for line in lines],
        lambda: one.score(lines).tolist(),
        lambda: all_.score(lines).tolist(),
    )
    name = f"{text.name}_5_scoring"
    return {
        f"{name}_kenlm_words_per_s": count / times[0],
        f"{name}_words_per_s": count / times[1],
        f"{name}_ratio": times[0] / times[1],
        f"{name}_all_threads_ratio": times[0] / times[2],
    }


def _median(repeats: int, *works: Callable[[], Any]) -> list[float]:
    """Time each function `repeats` times, in turn, so that noise affects all of them alike."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, taken in zip(works, times, strict=True):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
    return [median(taken) for taken in times]


def _default_corpus(peer: KenLM, folder: Path) -> dict[str, float]:
    """Count Python's library with our tokenizer, as `windlass train` would, and with lmplz on words."""
    _progress("default corpus")
    path = build_corpus(Corpus(), folder / "home")
    corpus = load_corpus(path)
    tokenizer = corpus.tokenizer
    packing = Packing(5, tokenizer.vocabulary, tokenizer.end_id)
    process = multiprocessing.get_context("spawn").Process(
        target=_built, args=(CorpusSource(path), packing, (), folder / "default")
    )
    began = time.perf_counter()
    process.start()
    peak = _watched(process)
    seconds = time.perf_counter() - began
    assert process.exitcode == 0, "the build failed; see the log"
    plain = folder / "default.txt"
    _write_ids(corpus.train.read(0, corpus.train.tokens), tokenizer.end_id, plain)
    theirs = peer.estimate(plain, 5, (), folder / "default.arpa", pad=tokenizer.vocabulary)
    manifest = load_manifest(StoreDir(folder / "default" / "model"))
    assert manifest is not None
    return {
        "default_tokens_per_s": corpus.train.tokens / seconds,
        "default_build_speed_ratio": theirs.seconds / seconds,
        "default_peak_memory_of_bound": peak.own / MEMORY,
        "default_peak_memory_with_mapped_files_of_bound": peak.resident / MEMORY,
        "default_lmplz_peak_memory_of_bound": theirs.peak_bytes / MEMORY,
        "default_model_bytes": float(manifest.bytes),
        "default_arpa_bytes": float(theirs.arpa.stat().st_size),
    }


@dataclass
class Peak:
    """Peak memory of a process and its children together."""

    own: int = 0
    """Allocated memory; the kernel may drop pages of mapped files."""
    resident: int = 0


def _watched(process: BaseProcess) -> Peak:
    peak = Peak()
    while process.is_alive():
        found = [_memory(one) for one in _family(process.pid)]
        peak.own = max(peak.own, sum(own for own, _ in found))
        peak.resident = max(peak.resident, sum(resident for _, resident in found))
        process.join(LOOK_EVERY_S)
    return peak


def _family(pid: int | None) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _memory(process: psutil.Process) -> tuple[int, int]:
    try:
        found = process.memory_info()
    except psutil.NoSuchProcess:
        return 0, 0
    return found.rss - found.shared, found.rss


def _write_ids(tokens: Any, end: int, path: Path) -> None:
    """Write documents as lines of token ids."""
    with path.open("w") as file:
        for document in np.split(tokens, np.flatnonzero(tokens == end) + 1):
            if len(document):
                file.write(" ".join(map(str, document[:-1].tolist())) + "\n")


def _progress(what: str) -> None:
    emit({"event": "note", "message": what})
