"""The cost of a request: what it may use, known before it is computed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windlass.http.deadlines import Deadline
from windlass.spec.protocol.wire import Embed, Generate, Work


class EngineCapacity(msgspec.Struct, frozen=True):
    """The capacity of the engines of one version."""

    slots: int
    """Answers that they can run at once."""
    memory: float = 0.0
    """The share of the KV cache in use, of the engine where it is largest."""


class RequestCost(msgspec.Struct, frozen=True):
    """What a request may use."""

    model: str
    answers: int
    prompt_tokens: int
    max_tokens: int
    """The maximum of all its answers together."""
    priority: int = 0
    deadline_s: float | None = None
    alternatives: int = 0
    """Alternatives reported for each token (logprobs); they cost time that token counts do not show."""


def request_cost(requests: Sequence[Work], deadline: Deadline | None = None) -> RequestCost:
    """Return the cost of all requests for one model; a prompt that several answers share counts once."""
    first, deadline_s = requests[0], deadline.seconds if deadline else None
    if len(requests) == 1 and isinstance(first, Generate):
        prompt_tokens, alternatives = len(first.tokens), max(0, first.logprobs)
        return RequestCost(
            first.model, 1, prompt_tokens, first.max_tokens, first.priority, deadline_s, alternatives
        )
    prompts = {id(r.tokens): len(r.tokens) for r in requests if isinstance(r, Generate)}
    inputs = sum(len(tokens) for r in requests if isinstance(r, Embed) for tokens in r.inputs)
    return RequestCost(
        model=first.model,
        answers=len(requests),
        prompt_tokens=sum(prompts.values()) + inputs,
        max_tokens=sum(r.max_tokens for r in requests if isinstance(r, Generate)),
        priority=first.priority,
        deadline_s=deadline_s,
        alternatives=max((0, *(r.logprobs for r in requests if isinstance(r, Generate)))),
    )
