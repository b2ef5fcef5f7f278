"""An n-gram model with the interface of `recurrent_state`.

Its state is the last order - 1 tokens, -1 where there was none. The end of a document is the beginning of
the next, and nothing before it matters any more.

Legend: B sequences, T tokens, S = order - 1, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.ngram.native import NativeTree, cores, ours
from windlass.models.ngram.trie import Level, Logs
from windlass.models.ngram.trie_numpy import LN10, Walk
from windlass.spec.errors import BadInput
from windlass.spec.shape import NgramShape

NOTHING = -1

Ids = NDArray[np.integer[Any]]
States = NDArray[np.int32]


class NgramModel:
    """A model whose arrays may lie in a mapped file. `native=False` computes in numpy, to the same bits."""

    def __init__(
        self, shape: NgramShape, levels: Sequence[Level], end: int, *, native: bool = True, threads: int = 0
    ) -> None:
        self.shape, self.levels, self.end = shape, levels, end
        self.state_size = shape.order - 1
        self.state_dtype = np.dtype(np.int32)
        self._threads = threads or cores()
        shared = ours() if native else None
        self.tree = None if shared is None else NativeTree(shared, levels, end)

    def first(self) -> States:
        return np.full(self.state_size, NOTHING, np.int32)

    def read(self, state_S: States, tokens_T: Ids) -> States:
        size = self.state_size
        sequence = np.concatenate([state_S, self._checked(tokens_T)])
        if not size:
            return np.empty((len(tokens_T), 0), np.int32)
        windows_TS = np.lib.stride_tricks.sliding_window_view(sequence, size)[1:]
        return self._since_end(windows_TS)

    def step(self, states_BS: States, tokens_B: Ids) -> States:
        if not self.state_size:
            return np.empty((len(tokens_B), 0), np.int32)
        tokens = self._checked(tokens_B)[:, None]
        return self._since_end(np.concatenate([states_BS[:, 1:], tokens], axis=1))

    def scores(self, states_BS: States) -> Logs:
        states = np.ascontiguousarray(states_BS, dtype=np.int32)
        if self.tree is not None:
            return self.tree.spread(states, self._threads)
        walk = Walk(self.levels, self.end, len(states))
        for column in range(self.state_size):
            walk.read(states[:, column], states[:, column] >= 0)
        return walk.spread()

    def logprobs(self, inputs_BT: Ids, targets_BT: Ids) -> NDArray[np.float64]:
        return self.logs(inputs_BT, targets_BT).astype(np.float64)

    def logs(self, inputs_BT: Ids, targets_BT: Ids) -> Logs:
        """Return `logprobs` as they are computed, in float32."""
        inputs, targets = self._checked(inputs_BT), self._checked(targets_BT)
        if self.tree is not None:
            return self.tree.score(inputs, targets, self._threads)
        walk, out_BT = Walk(self.levels, self.end, len(inputs)), np.empty(targets.shape, np.float32)
        for column in range(inputs.shape[1]):
            walk.read(inputs[:, column])
            out_BT[:, column] = walk.copy().read(targets[:, column]) * LN10
        return out_BT

    def _checked(self, ids: Ids) -> NDArray[np.int32]:
        """Ids go straight into addresses of memory, so each must be one of the vocabulary."""
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.shape.vocabulary:
            raise BadInput(f"token ids from {ids.min()} to {ids.max()}; there are {self.shape.vocabulary}")
        return np.ascontiguousarray(ids, dtype=np.int32)

    def _since_end(self, windows_TS: States) -> States:
        """Forget what came before the last end of a document in each window."""
        ends = windows_TS == self.end
        later = np.flip(np.cumsum(np.flip(ends, axis=1), axis=1), axis=1) - ends
        return np.where(later > 0, np.int32(NOTHING), windows_TS)
