"""Skip-gram with negative sampling: which pairs a block of tokens gives, and how they move the vectors.

    draw     block of tokens -> Groups; a pure function of the block, its position, the pass and the seed
    learn    Groups -> both matrices moved, in place
    changes  Groups and the rows that they touch -> what is to be added to those rows; a pure function
    run      many blocks drawn and learnt by threads, in place: the quick path

A parameter server sends the rows that `Groups.inputs` and `Groups.outputs` name, and adds the changes that
come back. The native library (native/word2vec.cpp) does the work; without it, numpy computes the same.
No pair crosses the end of a document, and none the boundary of two blocks.

Legend: G groups (tokens with context), K negatives, P pairs of co-occurring tokens, V vocabulary, D width.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.word2vec_native import DrawTables, NativeVectors, Sums, at, library

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

LANES = 8
NUMBERS = 64
"""Random numbers of one position; one decides whether and how far a token looks, the others are negatives."""
MAX_NEGATIVES = NUMBERS - 2
LOSS_EVERY = 8
"""The loss is computed for every eighth group: logarithms cost as much as the rest of a group."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Word2VecOptions:
    """The options that determine the pairs."""

    distance: int = 5
    """Co-occurring tokens are at most this far apart; each token draws its own reach up to it."""
    negatives: int = 5
    subsample: float = 1e-3
    """Tokens with a larger share than this are left out now and then (Mikolov et al. 2013, section 2.3)."""
    power: float = 0.75
    """Negatives are drawn by counts to this power."""


class Sampler:
    """The tables that `draw` looks into: all that it knows of the corpus."""

    def __init__(self, counts_V: NDArray[np.int64], end_token: int, options: Word2VecOptions) -> None:
        self.options, self.end_token, self.vocabulary = options, end_token, len(counts_V)
        self.keep_V = _keep(counts_V, options.subsample)
        self.threshold_V, self.alias_V = _alias(counts_V.astype(np.float64) ** options.power)

    @cached_property
    def native(self) -> DrawTables:
        return DrawTables(
            at(self.keep_V),
            at(self.threshold_V),
            at(self.alias_V),
            self.vocabulary,
            self.end_token,
            self.options.distance,
            self.options.negatives,
        )


@dataclass(frozen=True)
class Groups:
    """Tokens, each with the tokens around it and the negatives that these share."""

    targets_GN: Ints
    """The token, then K negatives; -1 where a negative is the token itself."""
    starts: Ints
    """Where the contexts of each group begin; one more at the end."""
    contexts_P: Ints

    @property
    def pairs(self) -> int:
        return len(self.contexts_P)

    @cached_property
    def inputs(self) -> Ints:
        """The rows of the input matrix that these groups touch, in order."""
        return np.unique(self.contexts_P)

    @cached_property
    def outputs(self) -> Ints:
        """The rows of the output matrix that these groups touch, in order."""
        return np.unique(self.targets_GN[self.targets_GN >= 0])


@dataclass
class Learnt:
    """Counts and losses of training."""

    pairs: int = 0
    loss_sum: float = 0.0
    loss_pairs: int = 0

    @property
    def loss(self) -> float:
        """Mean loss of a pair and its negatives, over the groups that were looked at."""
        return self.loss_sum / max(1, self.loss_pairs)

    def include(self, more: Learnt) -> None:
        self.pairs += more.pairs
        self.loss_sum += more.loss_sum
        self.loss_pairs += more.loss_pairs


@dataclass(frozen=True)
class Matrices:
    """The vectors of tokens as inputs (those that are kept in the end) and as outputs, in whole lanes."""

    inputs_VS: Floats
    outputs_VS: Floats
    width: int

    @property
    def native(self) -> NativeVectors:
        return NativeVectors(at(self.inputs_VS), at(self.outputs_VS), self.inputs_VS.shape[1])


def first_matrices(vocabulary: int, width: int, seed: int) -> Matrices:
    """Return small random inputs and zero outputs, as word2vec begins."""
    drawn = np.random.Generator(np.random.Philox(seed)).random((vocabulary, width), dtype=np.float32)
    return matrices_of(
        (drawn - np.float32(0.5)) / np.float32(width), np.zeros((vocabulary, width), np.float32)
    )


def matrices_of(inputs_VD: Floats, outputs_VD: Floats) -> Matrices:
    """Return copies with rows padded by zeros, which stay zero."""
    vocabulary, width = inputs_VD.shape
    padded = np.zeros((2, vocabulary, -(-width // LANES) * LANES), np.float32)
    padded[0, :, :width], padded[1, :, :width] = inputs_VD, outputs_VD
    return Matrices(padded[0], padded[1], width)


def pass_key(seed: int, number: int) -> int:
    """Return what the random numbers of one pass over the corpus start from."""
    words = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
    return int(words[0])


def draw(sampler: Sampler, key: int, tokens: Ints, first: int) -> Groups:
    """Return the groups of a block whose first token stands at position `first` of the corpus."""
    shared = library()
    if shared is None:
        return draw_numpy(sampler, key, tokens, first)
    count, options = len(tokens), sampler.options
    targets = np.empty((count, options.negatives + 1), np.int32)
    starts, contexts = np.empty(count + 1, np.int32), np.empty(2 * options.distance * count, np.int32)
    tokens = np.ascontiguousarray(tokens, np.int32)
    groups = shared.windlass_word2vec_draw(
        ctypes.byref(sampler.native), key, at(tokens), count, first, at(targets), at(starts), at(contexts)
    )
    return Groups(targets[:groups], starts[: groups + 1], contexts[: starts[groups]].copy())


def draw_numpy(sampler: Sampler, key: int, tokens: Ints, first: int) -> Groups:
    """The same as `draw`, number for number."""
    options = sampler.options
    positions = np.arange(first, first + len(tokens), dtype=np.uint64)
    drawn = _numbers(key, positions, 0)
    documents = np.cumsum(tokens == sampler.end_token) - (tokens == sampler.end_token)
    keeps = _low(drawn) <= sampler.keep_V[tokens]
    kept, of, positions = tokens[keeps], documents[keeps], positions[keeps]
    reach = 1 + _scaled(drawn[keeps], options.distance)
    offsets = [d for d in range(-options.distance, options.distance + 1) if d]
    near = np.arange(len(kept))[:, None] + np.array(offsets)
    inside = (near >= 0) & (near < len(kept)) & (np.abs(offsets)[None] <= reach[:, None])
    near = np.clip(near, 0, max(0, len(kept) - 1))
    inside &= of[near] == of[:, None]
    with_context = inside.any(axis=1)
    own, inside, near = kept[with_context], inside[with_context], near[with_context]
    drawn_GK = _numbers(key, positions[with_context][:, None], np.arange(1, options.negatives + 1))
    entries_GK = _scaled(drawn_GK, sampler.vocabulary)
    is_itself = _low(drawn_GK) < sampler.threshold_V[entries_GK]
    negatives_GK = np.where(is_itself, entries_GK, sampler.alias_V[entries_GK])
    negatives_GK[negatives_GK == own[:, None]] = -1
    targets_GN = np.concatenate([own[:, None], negatives_GK], axis=1).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(inside.sum(axis=1))]).astype(np.int32)
    return Groups(targets_GN, starts, kept[near[inside]].astype(np.int32))


def learn(matrices: Matrices, groups: Groups, rate: float) -> Learnt:
    """Move the vectors by each group in turn."""
    shared, sums = library(), Sums()
    if shared is None:
        return learn_numpy(matrices, groups, rate)
    targets, starts, contexts = groups.targets_GN, groups.starts, groups.contexts_P
    shared.windlass_word2vec_learn(
        ctypes.byref(matrices.native), at(targets), at(starts), at(contexts), *targets.shape, rate,
        ctypes.byref(sums),
    )  # fmt: skip
    return _learnt(sums)


def learn_numpy(matrices: Matrices, groups: Groups, rate: float) -> Learnt:
    """The same as `learn`, up to rounding."""
    inputs, outputs, learnt = matrices.inputs_VS, matrices.outputs_VS, Learnt(pairs=groups.pairs)
    for number, targets in enumerate(groups.targets_GN):
        contexts = groups.contexts_P[groups.starts[number] : groups.starts[number + 1]]
        targets = targets[targets >= 0]
        h_CD, o_ND = inputs[contexts], outputs[targets]
        scores_CN = h_CD @ o_ND.T
        labels_N = np.arange(len(targets)) == 0
        slopes_CN = (rate * (labels_N - 1 / (1 + np.exp(-scores_CN)))).astype(np.float32)
        np.add.at(inputs, contexts, slopes_CN @ o_ND)
        np.add.at(outputs, targets, slopes_CN.T @ h_CD)
        if number % LOSS_EVERY == 0:
            signed_CN = np.where(labels_N, scores_CN, -scores_CN)
            learnt.loss_sum += float(np.logaddexp(0, -signed_CN, dtype=np.float64).sum())
            learnt.loss_pairs += len(contexts)
    return learnt


def changes(
    groups: Groups, inputs_RD: Floats, outputs_RD: Floats, rate: float
) -> tuple[Floats, Floats, Learnt]:
    """Return what to add to the rows `groups.inputs` and `groups.outputs`, given their present values.

    Added to rows that have not changed meanwhile, it is what `learn` does to the whole matrices, up to the
    rounding of the difference; `moved` is exactly that.
    """
    new_in, new_out, learnt = moved(groups, inputs_RD, outputs_RD, rate)
    return new_in - inputs_RD, new_out - outputs_RD, learnt


def moved(
    groups: Groups, inputs_RD: Floats, outputs_RD: Floats, rate: float
) -> tuple[Floats, Floats, Learnt]:
    """Return the rows `groups.inputs` and `groups.outputs` as `learn` leaves them, given what they are."""
    rows = max(len(inputs_RD), len(outputs_RD))
    width = inputs_RD.shape[1]
    whole = np.zeros((2, rows, width), np.float32)
    whole[0, : len(inputs_RD)], whole[1, : len(outputs_RD)] = inputs_RD, outputs_RD
    matrices = matrices_of(whole[0], whole[1])
    learnt = learn(matrices, _numbered_by_row(groups), rate)
    return (
        matrices.inputs_VS[: len(inputs_RD), :width].copy(),
        matrices.outputs_VS[: len(outputs_RD), :width].copy(),
        learnt,
    )


def some_groups(groups: Groups, first: int, until: int) -> Groups:
    """Return groups first..until - 1; training them in turn equals training the whole."""
    starts = groups.starts[first : until + 1]
    contexts = groups.contexts_P[starts[0] : starts[-1]]
    return Groups(groups.targets_GN[first:until], starts - starts[0], contexts)


def _numbered_by_row(groups: Groups) -> Groups:
    """Return the groups with tokens named by their place among the touched rows."""
    targets = np.searchsorted(groups.outputs, groups.targets_GN).astype(np.int32)
    targets[groups.targets_GN < 0] = -1
    contexts = np.searchsorted(groups.inputs, groups.contexts_P).astype(np.int32)
    return Groups(targets, groups.starts, contexts)


def run(
    sampler: Sampler,
    matrices: Matrices,
    key: int,
    tokens: Ints,
    first: int,
    *,
    block: int,
    rates: Floats,
    threads: int,
) -> Learnt:
    """Draw and learn blocks of `block` tokens, each at its own rate.

    With one thread the result is a function of the arguments; several move the vectors without locks.
    """
    shared, learnt = library(), Learnt()
    tokens = np.ascontiguousarray(tokens, np.int32)
    if shared is not None:
        sums, rates = Sums(), np.ascontiguousarray(rates, np.float32)
        shared.windlass_word2vec_run(
            ctypes.byref(sampler.native), ctypes.byref(matrices.native), key, at(tokens), len(tokens), first,
            block, at(rates), threads, ctypes.byref(sums),
        )  # fmt: skip
        return _learnt(sums)
    for number, start in enumerate(range(0, len(tokens), block)):
        groups = draw_numpy(sampler, key, tokens[start : start + block], first + start)
        learnt.include(learn_numpy(matrices, groups, float(rates[number])))
    return learnt


def _learnt(sums: Sums) -> Learnt:
    return Learnt(sums.pairs, sums.loss, sums.loss_pairs)


def _keep(counts_V: NDArray[np.int64], subsample: float) -> NDArray[np.uint32]:
    """Return, by token, the largest random number at which it stays."""
    share_V = counts_V / max(1, counts_V.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        odds_V = np.sqrt(subsample / share_V) + subsample / share_V
    odds_V = np.where((counts_V > 0) & (subsample > 0), np.minimum(odds_V, 1.0), 1.0)
    return (np.ceil(odds_V * 2.0**32) - 1).astype(np.uint32)


def _alias(weights_V: NDArray[np.float64]) -> tuple[NDArray[np.uint32], Ints]:
    """Return the tables of the alias method (Walker 1977; Vose 1991): one look-up draws by weight."""
    size = len(weights_V)
    scaled = weights_V / weights_V.sum() * size
    chance, alias = np.ones(size), np.arange(size, dtype=np.int32)
    small, large = list(np.flatnonzero(scaled < 1)), list(np.flatnonzero(scaled >= 1))
    while small and large:
        less, more = small.pop(), large[-1]
        chance[less], alias[less] = scaled[less], more
        scaled[more] -= 1 - scaled[less]
        if scaled[more] < 1:
            small.append(large.pop())
    return np.minimum(chance * 2.0**32, 2.0**32 - 1).astype(np.uint32), alias


def _numbers(key: int, positions: NDArray[np.uint64], which: Any) -> NDArray[np.uint64]:
    """Splitmix64 (Steele et al. 2014), looked up by position."""
    with np.errstate(over="ignore"):
        counter = positions * np.uint64(NUMBERS) + np.asarray(which, np.uint64) + np.uint64(1)
        z = np.uint64(key) + counter * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)


def _low(numbers: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return numbers.astype(np.uint32)


def _scaled(numbers: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """Bring the upper halves of random numbers to 0 ... size - 1."""
    return (((numbers >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32)).astype(np.int64)
