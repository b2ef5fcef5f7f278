"""The expected loss of a model of some size after some tokens.

The law is L(N, D) = E + A / N^a + B / D^b (Hoffmann et al. 2022, arXiv:2203.15556, approach 3). Two things
make it hold for small models and short runs, too, where it is far off otherwise:

- The terms are joined by a power, (size^p + data^p)^(1/p). In the first hundreds of steps models of all
  sizes lose the same, and only later the small ones fall behind: whichever is short decides, as in the law of
  Kaplan et al. 2020 (arXiv:2001.08361, equation 1.5). With p = 1 it is Hoffmann's sum.
- A model that knows nothing loses the logarithm of its vocabulary. The excess x over the floor E is bent
  below the room r between the two: x / (1 + (x / r)^2)^(1/2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

REPEATS_FADE = 15.39
"""Repetitions after which text has lost 63% of its worth (Muennighoff et al. 2023, arXiv:2305.16264)."""


@dataclass(frozen=True)
class Law:
    """Nats per token as a function of weights and tokens."""

    floor: float
    """E: what no model of any size can know of the next token."""
    size_scale: float
    size_power: float
    data_scale: float
    data_power: float
    sharpness: float = 1.0
    """The power p that joins size and data."""
    ceiling: float = math.inf
    """The loss of a model that knows nothing, the logarithm of the vocabulary or somewhat less."""

    def loss(self, weights: float, tokens: float) -> float:
        size = self.size_scale / float(weights**self.size_power)
        data = self.data_scale / float(tokens**self.data_power)
        joined = float((size**self.sharpness + data**self.sharpness) ** (1 / self.sharpness))
        return self.floor + joined / math.hypot(1.0, joined / (self.ceiling - self.floor))


HOFFMANN = Law(1.69, 406.4, 0.34, 410.7, 0.28)
BESIROGLU = Law(1.8172, 482.01, 0.3478, 2085.43, 0.3658)
"""Fitted again to the points of Hoffmann's figure 4 (Besiroglu et al. 2024, arXiv:2404.10102, table 1)."""

PUBLISHED_VOCABULARY = 32_000
"""Of the tokenizer behind both."""
LAWFUL = (0.0, 1.5, 9.9, 11.6, 21.0, 26.0, 60.0, 1e4)
SEEN = (0.0, 1.5, 2.2, 2.6, 5.3, 7.0, 8.2, 8.6)
"""The excess that Hoffmann's law gives, and the one that small runs of ours had, for 32,000 tokens; runs of
20,000 to 800,000 weights and 40,000 to 6 million tokens on Python's library and on Shakespeare. Below 1.5 the
law is left as it is."""


def expected_loss(
    weights: float, tokens: float, corpus_tokens: float, vocabulary: int = PUBLISHED_VOCABULARY
) -> float:
    """Return nats per token before anything was measured.

    The trade between size and tokens is the published one. Its level is that of our own runs where the law
    was never meant to hold, and a token counts by the logarithm of the vocabulary, about as much text as it
    stands for.
    """
    known = replace(HOFFMANN, floor=0.0).loss(weights, useful_tokens(tokens, corpus_tokens))
    excess = float(np.interp(known, LAWFUL, SEEN))
    return (HOFFMANN.floor + excess) * math.log(vocabulary) / math.log(PUBLISHED_VOCABULARY)


def useful_tokens(tokens: float, corpus_tokens: float) -> float:
    """Return how many fresh tokens are worth as much as these, of which some are repeated.

    Each further epoch is worth less, in a geometric row (Muennighoff et al. 2023, section 3.1).
    """
    repeats = max(0.0, tokens / corpus_tokens - 1)
    fresh = min(tokens, corpus_tokens)
    return fresh + corpus_tokens * REPEATS_FADE * -math.expm1(-repeats / REPEATS_FADE)
