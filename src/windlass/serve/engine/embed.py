"""Embeddings: the mean of the final hidden states of a sequence's tokens, scaled to unit length."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from windlass.serve.engine.sequence import Owner, Sequence, outside
from windlass.spec.protocol.wire import Embed, EmbeddingVectors, Failed


@dataclass(eq=False)
class EmbeddingTask:
    """An Embed request under way: each input is a sequence whose states are summed as it is computed."""

    owner: Owner
    request: Embed
    parts: list[Sequence] = field(default_factory=list)
    done: int = 0

    @property
    def is_done(self) -> bool:
        return self.done == len(self.parts)

    def vectors(self) -> list[list[float]]:
        """Return one unit vector for each input; the mean points where the sum does."""
        found: list[list[float]] = []
        for part in self.parts:
            assert part.sum_D is not None
            length = float(np.linalg.norm(part.sum_D))
            found.append((part.sum_D / length if length else part.sum_D).tolist())
        return found


def answer(id_: str, vectors: list[list[float]]) -> EmbeddingVectors | Failed:
    """Return the reply to a request: its vectors, or a failure if they are not finite."""
    if np.isfinite(np.array(vectors)).all():
        return EmbeddingVectors(id_, vectors)
    reason = "the states of this model are not numbers; its weights are damaged"
    return Failed(id_, "not_a_number", reason)


def refusal(request: Embed, vocabulary: int, context: int) -> tuple[str, str] | None:
    """Return the error code and message of an invalid request, or None."""
    for number, tokens in enumerate(request.inputs):
        bad = outside(tokens, vocabulary)
        if not tokens:
            return "bad_tokens", f"input {number} is empty"
        if bad is not None:
            return "bad_tokens", f"input {number}: token {bad} is not in the vocabulary of {vocabulary}"
        if len(tokens) > context:
            return (
                "context_exceeded",
                f"input {number} has {len(tokens)} tokens, but the context is {context}",
            )
    return None if request.inputs else ("bad_tokens", "there are no inputs")
