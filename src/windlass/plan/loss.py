"""What loss to expect from a model of some size after some tokens.

The published law L(N, D) = E + A / N^a + B / D^b with the coefficients of Hoffmann et al. 2022
(arXiv:2203.15556, approach 3). It was fitted to web text and a 32k vocabulary; on other text its level
is off, but its trade between size and tokens is what the search needs.
"""

from __future__ import annotations

FLOOR = 1.69
SIZE_SCALE, SIZE_POWER = 406.4, 0.34
DATA_SCALE, DATA_POWER = 410.7, 0.28
REPEATS_WORTH = 4.0


def expected_loss(weights: float, tokens: float, corpus_tokens: float) -> float:
    """Return nats per token. Repeated text counts less: at most about four epochs are as good as fresh
    (Muennighoff et al. 2023, arXiv:2305.16264)."""
    useful = min(tokens, REPEATS_WORTH * corpus_tokens)
    return FLOOR + SIZE_SCALE / float(weights**SIZE_POWER) + DATA_SCALE / float(useful**DATA_POWER)
