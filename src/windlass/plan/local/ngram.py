"""The cost of counting n-grams on this machine, as windlass.train.ngram does it.

Input: how many different n-grams samples of the text have, its length, and how long this machine takes to
sort. Output: n-grams of each order, bytes in memory and on disk, seconds. The constants were measured stage
by stage in CPU seconds (docs/statistical.md has the figures); all of them are sorting and walking through
arrays, so they are scaled by how quickly this machine sorts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.plan.local.machine import SORT_S

Triple = tuple[int, int, int]
"""Of something in a quarter, a half and the whole of a sample."""

WINDOW_S = 1.25e-8
"""To pack, sort and count a window, for each of its tokens; shared by the processes."""
NODE_S = 2.5e-7
"""To merge an n-gram, link it and estimate its probability."""
SCORE_S = 4e-6
"""To score a held-out token."""
START_S = 0.6
"""To start the processes that count, to load torch for the last evaluation, and to write the model."""
BASE_BYTES, NODE_BYTES = 85 << 20, 60
"""In memory, as long as the bound allows it: what is mapped counts, too."""
EVALUATION_BYTES = 330 << 20
"""Of a process with torch, which measures the model in the end."""
NODE_DISK_BYTES = 36
MIN_BEND = 0.8


@dataclass(frozen=True)
class Growth:
    """What samples of a text say: n-grams seen, and those above the threshold, by order."""

    tokens: int
    seen: tuple[Triple, ...]
    kept: tuple[Triple, ...]


def all_different(tokens: int, order: int) -> Growth:
    """Return the upper bound for a text without samples: all n-grams differ."""
    triple = (max(1, tokens // 4), max(1, tokens // 2), max(1, tokens))
    return Growth(max(1, tokens), (triple,) * order, (triple,) * order)


@dataclass(frozen=True)
class NgramPrediction:
    """The predicted n-grams and cost of a run."""

    nodes: tuple[int, ...]
    """Different n-grams of each order."""
    ngrams: tuple[int, ...]
    """Those that the model keeps."""
    model_bytes: int
    memory_bytes: int
    disk_bytes: int
    seconds: float


def counting_cost(
    growth: Growth, *, tokens: int, held_out: int, vocabulary: int, bound: int, workers: int, sort_s: float
) -> NgramPrediction:
    """Return the cost of counting a text of `tokens` tokens, within `bound` bytes of memory."""
    nodes = _whole(growth.seen, growth.tokens, tokens, vocabulary)
    kept = _whole(growth.kept, growth.tokens, tokens, vocabulary)
    ngrams = (vocabulary, *(min(k, n) for k, n in zip(kept[1:], nodes[1:], strict=True)))
    order, total = len(nodes), sum(nodes)
    model = model_bytes(ngrams, vocabulary)
    pace = sort_s / SORT_S
    work = WINDOW_S * order * tokens / workers + NODE_S * total + SCORE_S * held_out
    return NgramPrediction(
        nodes=nodes,
        ngrams=ngrams,
        model_bytes=model,
        memory_bytes=max(min(bound, BASE_BYTES + NODE_BYTES * total), EVALUATION_BYTES + model),
        disk_bytes=NODE_DISK_BYTES * total + model,
        seconds=pace * (START_S + work),
    )


def extrapolated(counts: Triple, sample: int, tokens: int) -> float:
    """Return how many there are in the whole text.

    Heaps' law says that the number of types grows as a power of the text's length. In real text the power
    falls as the text grows, about by the same factor at every doubling; that factor is seen in the samples.
    """
    quarter, half, whole = (max(1, count) for count in counts)
    doublings = max(0.0, math.log2(tokens / sample))
    before, power = math.log2(half / quarter), math.log2(whole / half)
    bend = min(1.0, max(MIN_BEND, power / before)) if before > 0 else 1.0
    full = int(doublings)
    steps = sum(bend**n for n in range(1, full + 1)) + bend ** (full + 1) * (doublings - full)
    return whole * math.exp2(power * steps)


def model_bytes(ngrams: Sequence[int], vocabulary: int) -> int:
    """Return the bytes of a model, by docs/formats/ngram.md: words, suffixes, probabilities; backoffs and
    beginnings of all orders but the highest."""
    word = 2 if vocabulary <= 1 << 16 else 4
    inner = [4 + 4 + 4, *[word + 4 + 4 + 4 + 4] * (len(ngrams) - 2), word + 4 + 4]
    return sum(n * each for n, each in zip(ngrams, inner if len(ngrams) > 1 else [4], strict=True))


def _whole(samples: Sequence[Triple], sample: int, tokens: int, vocabulary: int) -> tuple[int, ...]:
    """No text has more n-grams than tokens, nor more different tokens than the vocabulary."""
    found = [min(tokens, round(extrapolated(counts, sample, tokens))) for counts in samples]
    return (min(found[0], vocabulary), *found[1:])
