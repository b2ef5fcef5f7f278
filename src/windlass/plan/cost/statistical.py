"""What the statistical families cost: n-grams, hidden Markov models, word embeddings with a perceptron.

Input: sizes of the text and of the model. Output: arithmetic, bytes that pass through memory, bytes that
must be held while it is made, and bytes of the finished model. Time follows from two speeds of a machine,
and money from time, as for every other model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FLOAT_BYTES = 4
TOKEN_BYTES = 4
COUNT_BYTES = 8
ENTRY_BYTES = 16
"""Of one n-gram in a table by hash: key of 8, probability and back-off of 4 each (Heafield 2011, KenLM,
section 3.1)."""
TABLE_SLACK = 1.5
"""Places in such a table for every entry (the same)."""
SORTS = 3
"""Of all records: by suffix to count, by context to normalise, by suffix to interpolate (Heafield et al.
2013, "Scalable Modified Kneser-Ney Language Model Estimation", section 3)."""
SORT_PASSES = 4
"""Times that a sort in blocks reads or writes each record: a run of the block sort, and one merge."""
TRAINING_TIMES = 3
"""Training beside inference: the backward pass multiplies twice (Kaplan et al. 2020, section 2.1)."""
ADAM_BYTES = 16
"""For each weight in float32: itself, its gradient and two moments."""


@dataclass(frozen=True)
class Work:
    """What making a model takes."""

    flops: float
    moved_bytes: float
    memory_bytes: float
    model_bytes: float

    def seconds(self, flops_s: float, bytes_s: float) -> float:
        """Arithmetic and memory overlap, so the slower of both counts (Williams et al. 2009, roofline)."""
        return max(self.flops / flops_s, self.moved_bytes / bytes_s)


def distinct_ngrams(half: float, whole: float, sample_tokens: float, tokens: float) -> float:
    """Return how many different n-grams a text has, from counts in half of a sample and in all of it.

    Heaps' law, types = k * tokens^b (Heaps 1978, section 7.5); the two counts give b. No text has more
    n-grams than tokens.
    """
    power = min(1.0, max(0.0, math.log2(whole / half)))
    return float(min(tokens, whole * (tokens / sample_tokens) ** power))


def kept_ngrams(distinct: float, cutoff: int) -> float:
    """Return how many of them occur more than `cutoff` times.

    By Zipf's second law 1 / (f (f + 1)) of all types occur f times, so 1 / (cutoff + 1) occur more often
    (Baayen 2001, "Word Frequency Distributions", section 3.3).
    """
    return distinct / (cutoff + 1)


def ngram_work(tokens: float, distinct: Sequence[float], cutoffs: Sequence[int] = ()) -> Work:
    """Return the work of a modified Kneser-Ney model (Chen and Goodman 1999), whose orders are 1, 2, ...

    `distinct` holds the different n-grams of each order, `cutoffs` how often those occur at most that are
    dropped. Discounts need all counts, so pruning makes the model smaller and not the work.
    """
    kept = sum(kept_ngrams(n, c) for n, c in zip(distinct, [*cutoffs, *[0] * len(distinct)], strict=False))
    order = len(distinct)
    records = sum(n * (k * TOKEN_BYTES + COUNT_BYTES) for k, n in enumerate(distinct, 1))
    counted = tokens * (order * TOKEN_BYTES + COUNT_BYTES)
    return Work(
        # Of each n-gram: discount, divide, weigh the lower order, add.
        flops=4.0 * sum(distinct),
        moved_bytes=counted + SORTS * SORT_PASSES * records,
        memory_bytes=TABLE_SLACK * ENTRY_BYTES * sum(distinct),
        model_bytes=TABLE_SLACK * ENTRY_BYTES * kept,
    )


def hidden_markov_work(
    tokens: float, states: int, vocabulary: int, iterations: int, chunk_tokens: int = 4096
) -> Work:
    """Return the work of Baum-Welch (Rabiner 1989, "A Tutorial on Hidden Markov Models", equations 20 to 37).

    Forward, backward and the expected transitions each take a multiply-add for every pair of states and
    token, S^2 T in all; emissions and scaling take a few for every state and token. The text is taken in
    chunks, of which only one has its forward variables in memory.
    """
    pairs, singles = 3 * 2.0 * states**2, 6.0 * states
    numbers = states * states + states * vocabulary + states
    per_token = FLOAT_BYTES * (
        4 * states + 2 * states
    )  # variables both ways, emission rows read and added to
    return Work(
        flops=iterations * tokens * (pairs + singles),
        moved_bytes=iterations * (tokens * per_token + 3 * FLOAT_BYTES * numbers),
        memory_bytes=FLOAT_BYTES * (2.0 * numbers + 3 * chunk_tokens * states),
        model_bytes=FLOAT_BYTES * float(numbers),
    )


def embedding_work(
    tokens: float, vocabulary: int, width: int, *, window: int = 5, negatives: int = 5, epochs: int = 5
) -> Work:
    """Return the work of word2vec, skip-gram with negative sampling (Mikolov et al. 2013, arXiv:1310.4546).

    A window of up to c words on both sides, drawn evenly from 1 to c, gives c + 1 pairs a token. Each pair
    takes a product with the true word and with each false one, and as much twice for the gradients; every
    vector touched is read and written.
    """
    pairs = epochs * tokens * (window + 1)
    products = pairs * (1 + negatives)
    numbers = 2.0 * vocabulary * width
    return Work(
        flops=TRAINING_TIMES * 2.0 * products * width,
        moved_bytes=2.0 * FLOAT_BYTES * width * (products + pairs),
        memory_bytes=FLOAT_BYTES * numbers,
        model_bytes=FLOAT_BYTES * numbers / 2,
    )


def mlp_work(
    tokens: float,
    vocabulary: int,
    width: int,
    *,
    context: int,
    hidden: int,
    epochs: int = 1,
    batch: int = 1024,
) -> Work:
    """Return the work of a perceptron that predicts a word from the embeddings of those before it.

    It takes n d h + h V multiply-adds a word (Bengio et al. 2003, "A Neural Probabilistic Language Model",
    section 3.1).
    """
    matrices = context * width * hidden + hidden * vocabulary
    numbers = matrices + vocabulary * width + hidden + vocabulary
    activations = FLOAT_BYTES * batch * (context * width + 2 * hidden + 2 * vocabulary)
    steps = epochs * tokens / batch
    return Work(
        flops=TRAINING_TIMES * 2.0 * epochs * tokens * matrices,
        moved_bytes=steps * (2.0 * ADAM_BYTES * numbers + TRAINING_TIMES * activations),
        memory_bytes=float(ADAM_BYTES * numbers + activations),
        model_bytes=FLOAT_BYTES * float(numbers),
    )
