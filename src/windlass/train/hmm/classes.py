"""Classes of tokens with similar neighbours, from which the initial states are made.

Input: which token follows which, and how often. Output: the class of each token.

Counts are tempered and divided by those of both tokens, n_ab^(1/2) / (n_a n_b)^(1/4), as Stratos, Collins and
Hsu (2015) found best; of the largest singular vectors, found by a random sketch (Halko, Martinsson and Tropp
2011), the left ones say what follows a token and the right ones what comes before it. Tokens are clustered by
both, by direction alone. All of it is sparse: the work is that of the pairs that occur.

V tokens, K classes, D directions, P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from windlass.train.hmm.text import HmmText

DIRECTIONS = 32
"""More directions fit peculiarities of single tokens, and training ends at a lower likelihood
(docs/log.md)."""
OVERSAMPLED = 16
POWERS = 3
"""Power iterations of the sketch; each separates the large singular values further from the small ones."""
ROUNDS = 25
PAIR_TOKENS = 1 << 24
"""Pairs are counted in at most this many tokens, evenly spread over the text."""
CHUNK_SEQUENCES = 4096

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TokenPairs:
    """Token counts and bigram counts: `second_P` follows `first_P` `count_P` times."""

    seen_V: Ints
    first_P: Ints
    second_P: Ints
    count_P: Ints


def count_pairs(text: HmmText, vocabulary: int) -> TokenPairs:
    """Count the bigrams of a text, or of an even sample of PAIR_TOKENS tokens."""
    wanted = min(text.count, max(1, PAIR_TOKENS // text.length))
    numbers = np.linspace(0, text.count - 1, wanted).astype(np.int64)
    seen_V = np.zeros(vocabulary, np.int64)
    codes, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for at in range(0, wanted, CHUNK_SEQUENCES):
        tokens_NT = text.read(numbers[at : at + CHUNK_SEQUENCES])
        seen_V += np.bincount(tokens_NT.ravel(), minlength=vocabulary)
        met = (tokens_NT[:, :-1] * vocabulary + tokens_NT[:, 1:]).ravel()
        codes, place = np.unique(np.concatenate([codes, met]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, np.ones(len(met))]), len(codes)).astype(np.int64)
    return TokenPairs(seen_V, codes // vocabulary, codes % vocabulary, counts)


def classes_of(pairs: TokenPairs, classes: int, seed: int) -> Ints:
    """Return the class of each token. Computed by one thread, so the bits are the same on every machine."""
    vectors_VD = neighbourhoods(pairs, seed)
    seen_V = torch.from_numpy(pairs.seen_V).double()
    return _clustered(vectors_VD, seen_V, classes).numpy()


def neighbourhoods(pairs: TokenPairs, seed: int) -> Tensor:
    """Return a unit vector for each token that describes what follows and precedes it."""
    seen_V = np.maximum(pairs.seen_V, 1).astype(np.float64)
    tempered_P = np.sqrt(pairs.count_P) / (seen_V[pairs.first_P] * seen_V[pairs.second_P]) ** 0.25
    where = (pairs.first_P, pairs.second_P)
    matrix = csr_matrix((tempered_P, where), shape=(len(seen_V), len(seen_V)))
    left_VD, right_VD = _singular_vectors(matrix, min(DIRECTIONS, len(seen_V)), seed)
    return torch.nn.functional.normalize(torch.cat([left_VD, right_VD], 1), dim=1)


def _singular_vectors(matrix: csr_matrix, directions: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the largest singular vectors, each times the root of its value."""
    vocabulary = matrix.shape[0]
    width = min(directions + OVERSAMPLED, vocabulary)
    mirror = matrix.T.tocsr()
    basis = _orthogonal(matrix @ np.random.default_rng(seed).standard_normal((vocabulary, width)))
    for _ in range(POWERS):
        basis = _orthogonal(matrix @ _orthogonal(mirror @ basis))
    inner, values, right = torch.linalg.svd(torch.from_numpy(mirror @ basis).T, full_matrices=False)
    root = values[:directions].sqrt()
    left = torch.from_numpy(basis) @ inner
    return left[:, :directions] * root, right[:directions].T * root


def _orthogonal(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an orthogonal basis of the same space, by torch's one thread rather than by all of numpy's."""
    basis: NDArray[np.float64] = torch.linalg.qr(torch.from_numpy(columns)).Q.numpy()
    return basis


def _clustered(vectors_VD: Tensor, seen_V: Tensor, classes: int) -> Tensor:
    """Cluster directions by k-means, tokens weighed by the root of their count.

    The commonest tokens are the first centres. A class that has become empty takes the token that fits worst.
    """
    order_V = torch.argsort(seen_V, descending=True, stable=True)
    centres_KD = vectors_VD[order_V[:classes]]
    if len(centres_KD) < classes:
        return torch.arange(len(seen_V))
    weight_V = seen_V.sqrt()
    for _ in range(ROUNDS):
        nearness_V, class_V = (vectors_VD @ centres_KD.T).max(1)
        empty = torch.nonzero(torch.bincount(class_V, minlength=classes) == 0)[:, 0]
        badness_V = weight_V * (1 - nearness_V)
        class_V[torch.argsort(badness_V, descending=True, stable=True)[: len(empty)]] = empty
        sums_KD = torch.zeros_like(centres_KD).index_add_(0, class_V, vectors_VD * weight_V[:, None])
        centres_KD = torch.nn.functional.normalize(sums_KD, dim=1)
    return class_V
