"""The runner of models with a small state after each token (windlass.models.recurrent_state).

The state after each token is stored in blocks, as keys and values of a transformer are. So prefix sharing,
rejected drafts and resumed requests work in the same way, and neither the scheduler nor the gateway knows
the difference. Torch is not loaded.

Legend: N blocks, P places in a block, S numbers of a state, T tokens of a step, B rows of scores,
V vocabulary, D width of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.recurrent_state import Embedded, States, Statistical
from windlass.serve.engine.adapters import Adapter
from windlass.serve.engine.native import ThreadPool, library
from windlass.serve.engine.runner import BLOCK_TOKENS, Computed, Span
from windlass.spec.errors import BadInput

PRECISION = "float32"
"""Precision of the scores and of the weights."""
MIN_LOGPROB = np.float32(-100.0)
"""Log-probability of an impossible token, in nats: finite, because JSON has no infinity."""


class StateRunner:
    """A model with the states of its sequences."""

    def __init__(self, model: Statistical, *, blocks: int, threads: int = 1) -> None:
        self.shape, self.precision, self.blocks = model.shape, PRECISION, blocks
        shared = library()
        self.thread_pool = None if shared is None else ThreadPool(shared, threads)
        self._model = model
        self._first_S = model.first()
        self._states_NPS = np.zeros((blocks, BLOCK_TOKENS, model.state_size), model.state_dtype)

    def run(self, spans: Sequence[Span], tables: NDArray[np.int32], *, hidden: bool = False) -> Computed:
        states = self._read(spans, tables)
        wanted = [after_TS[len(after_TS) - span.outs :] for span, after_TS in zip(spans, states, strict=True)]
        scores_BV = self._model.scores(np.concatenate(wanted))
        np.maximum(scores_BV, MIN_LOGPROB, out=scores_BV)
        return Computed(scores_BV, self._vectors(np.concatenate(states)) if hidden else None)

    def take_adapter(self, adapter: Adapter) -> int:
        raise BadInput(
            f"adapter {adapter.name}: LoRA changes the matrices of a transformer, and this is an "
            f"{self.shape.family} model"
        )

    def _read(self, spans: Sequence[Span], tables: NDArray[np.int32]) -> list[States]:
        """Return the states after every token, span by span, and store them in blocks."""
        before = [self._before(span, tables) for span in spans]
        single = [number for number, span in enumerate(spans) if len(span.tokens) == 1]
        found: list[States] = [self._first_S[None]] * len(spans)
        if single:
            tokens_B = np.array([spans[number].tokens[0] for number in single], np.int64)
            after_BS = self._model.step(np.stack([before[number] for number in single]), tokens_B)
            for number, after_S in zip(single, after_BS, strict=True):
                found[number] = after_S[None]
        for number, span in enumerate(spans):
            if len(span.tokens) != 1:
                found[number] = self._model.read(before[number], np.array(span.tokens, np.int64))
            self._states_NPS[places(span, tables)] = found[number]
        return found

    def _before(self, span: Span, tables: NDArray[np.int32]) -> States:
        if not span.position:
            return self._first_S
        block, place = divmod(span.position - 1, BLOCK_TOKENS)
        state_S: States = self._states_NPS[tables[span.slot, block], place]
        return state_S

    def _vectors(self, states_TS: States) -> NDArray[np.float32]:
        assert isinstance(self._model, Embedded), "the engine refuses vectors of a model without width"
        return self._model.vectors(states_TS)


def places(span: Span, tables: NDArray[np.int32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return block and place of each token of a span."""
    positions_T = np.arange(span.position, span.position + len(span.tokens))
    blocks_T = tables[span.slot, positions_T // BLOCK_TOKENS]
    return blocks_T, positions_T % BLOCK_TOKENS
