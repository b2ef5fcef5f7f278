"""Baum-Welch iterations compared with hmmlearn's: the same text, the same initial parameters, one core each.

Sequences are real text (a part of Python's source). Both start from the same random point and take the same
iterations, in turn; likelihoods are compared iteration by iteration. Times are CPU times, and the fastest
round of each counts: the machine may be busy. hmmlearn has two implementations: "scaling" is faster and is
compared with, "log" is its default and is timed at the smallest size.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from windlass.corpus.build import build_corpus
from windlass.corpus.corpus_dir import load_corpus
from windlass.lab.torch.train_bench import bench_corpus
from windlass.models.hmm.weights import HmmWeights
from windlass.parallel.device import place_process
from windlass.spec.errors import BadInput
from windlass.spec.job import MachineSpec
from windlass.spec.protocol.entrypoint import emit
from windlass.spec.protocol.progress import silent
from windlass.train.hmm.classes import count_pairs
from windlass.train.hmm.initial import random_start
from windlass.train.hmm.maximise import maximise
from windlass.train.hmm.sweep import sweep
from windlass.train.hmm.text import HmmText, Tokens, text_of, text_of_corpus

ITERATIONS = 3
SEED = 3
KINDS = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class HmmProblem:
    """A problem: states, vocabulary, sequences and their length."""

    states: int
    vocabulary: int
    sequences: int
    length: int

    @property
    def name(self) -> str:
        return f"k{self.states}_v{self.vocabulary}"


SIZES = (
    HmmProblem(16, 1024, 512, 128),
    HmmProblem(64, 1024, 256, 128),
    HmmProblem(128, 8192, 128, 256),
    HmmProblem(256, 8192, 64, 256),
)


@dataclass
class HmmRun:
    """The result of some iterations."""

    likelihoods: list[float]
    seconds: float
    """CPU seconds per iteration."""


def bench_hmm(repeats: int, sizes: tuple[HmmProblem, ...] = SIZES) -> dict[str, Any]:
    """Compare at each size; return ratios as figures, and the trajectories."""
    place_process(MachineSpec(device="cpu"), threads=1)
    figures: dict[str, float] = {}
    trajectories: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as scratch:
        for number, size in enumerate(sizes):
            tokens_NT = _real_text(size, Path(scratch))
            weights = random_start(count_pairs(text_of(tokens_NT), size.vocabulary), size.states, SEED)
            found = _rounds(weights, tokens_NT, repeats, default=number == 0)
            figures |= figures_of(size, found)
            trajectories[size.name] = {who: one.likelihoods for who, one in found.items()}
            done = {"done": number + 1, "total": len(sizes), "unit": "sizes"}
            emit({"event": "progress", "stage": "hmm", **done})
    return {"figures": figures, "log_likelihoods": trajectories}


def figures_of(size: HmmProblem, found: dict[str, HmmRun]) -> dict[str, float]:
    """Compare our result with hmmlearn's."""
    theirs, tokens = found["hmmlearn"], size.sequences * size.length
    figures = {f"{size.name}_hmmlearn_s": theirs.seconds}
    for kind in KINDS:
        ours = found[kind]
        figures[f"{size.name}_{kind}_s"] = ours.seconds
        figures[f"{size.name}_{kind}_tokens_per_s"] = tokens / ours.seconds
        figures[f"{size.name}_{kind}_vs_hmmlearn"] = theirs.seconds / ours.seconds
        figures[f"{size.name}_{kind}_difference"] = _apart(ours.likelihoods, theirs.likelihoods)
    if "hmmlearn_log" in found:
        ratio = found["hmmlearn_log"].seconds / found["float64"].seconds
        figures[f"{size.name}_float64_vs_hmmlearn_log"] = ratio
    return figures


def _apart(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))


def _rounds(weights: HmmWeights, tokens_NT: Tokens, repeats: int, *, default: bool) -> dict[str, HmmRun]:
    """Run all contenders in turn on one core, and keep the fastest round of each."""
    text = text_of(tokens_NT)
    best: dict[str, HmmRun] = {}
    for _ in range(repeats):
        with _one_core():
            turns = {name: _ours(weights, text, kind) for name, kind in KINDS.items()}
            turns["hmmlearn"] = _theirs(weights, tokens_NT, "scaling")
            if default:
                turns["hmmlearn_log"] = _theirs(weights, tokens_NT, "log")
        for name, turn in turns.items():
            best[name] = min(best.get(name, turn), turn, key=lambda one: one.seconds)
    return best


def _ours(weights: HmmWeights, text: HmmText, kind: torch.dtype) -> HmmRun:
    reached, began = [], time.process_time()
    for _ in range(ITERATIONS):
        tally = sweep(weights, text, dtype=kind)
        assert tally is not None
        counts = tally.counts()
        reached.append(counts.log_likelihood)
        weights = maximise(counts, weights, smoothing=0.0)
    return HmmRun(reached, (time.process_time() - began) / ITERATIONS)


def _theirs(weights: HmmWeights, tokens_NT: Tokens, implementation: str) -> HmmRun:
    try:
        from hmmlearn.hmm import CategoricalHMM
    except ImportError:
        raise BadInput("hmmlearn is not installed", hint="pip install 'windlass[bench]'") from None
    logging.getLogger("hmmlearn").setLevel(logging.ERROR)  # it warns about more parameters than tokens
    peer = CategoricalHMM(
        weights.states, n_features=weights.vocabulary, n_iter=ITERATIONS, tol=-np.inf, init_params="",
        implementation=implementation,
    )  # fmt: skip
    peer.startprob_, peer.transmat_, peer.emissionprob_ = weights.tables.values()
    count, length = tokens_NT.shape
    began = time.process_time()
    peer.fit(tokens_NT.reshape(-1, 1), [length] * count)
    return HmmRun(list(peer.monitor_.history), (time.process_time() - began) / ITERATIONS)


def _real_text(size: HmmProblem, home: Path) -> Tokens:
    corpus = load_corpus(build_corpus(bench_corpus(size.vocabulary), home, silent))
    text = text_of_corpus(corpus, size.length)
    if text.count < size.sequences:
        raise BadInput(f"only {text.count} sequences of {size.length} tokens, not {size.sequences}")
    return text.read(np.linspace(0, text.count - 1, size.sequences).astype(np.int64))


@contextmanager
def _one_core() -> Iterator[None]:
    """Pin this process and its libraries to one core; if that is impossible, to one thread."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
