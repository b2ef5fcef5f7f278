"""The state of one request, from its prompt to its last token."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from windlass.serve.engine.block_manager import BlockNode
from windlass.spec.protocol.wire import Alternative, Generate, Tokens

if TYPE_CHECKING:
    from windlass.serve.engine.grammar.token_mask import Matcher, Pending

Owner = Hashable
"""The connection that sent a request; request ids are unique within an owner only."""


@dataclass(eq=False, slots=True)
class Sequence:
    """All tokens so far, and how many of them have their keys and values in blocks.

    `tokens` is one longer than `cached` while the sequence decodes: the last token was sampled and has
    not been computed yet. Preemption sets `cached` to 0 and changes nothing else.
    """

    owner: Owner
    request: Generate
    tokens: list[int]
    arrival: int
    adapter: int = -1
    slot: int = -1
    cached: int = 0
    path: list[BlockNode] = field(default_factory=list)
    """Its full blocks in the prefix tree, which other sequences may share."""
    blocks: list[int] = field(default_factory=list)
    """All blocks in order, those of `path` first."""
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_alternatives: list[list[Alternative]] = field(default_factory=list)
    scored: bool = False
    """Whether the scores of the prompt were sent."""
    counts: dict[int, int] | None = None
    """How often each token was generated; only for requests with penalties."""
    pending: Pending | None = None
    matcher: Matcher | None = None
    sum_D: NDArray[np.float64] | None = None
    """Sum of the final hidden states; only for embedding requests."""
    draft: list[int] = field(default_factory=list)
    """Draft of the next tokens, computed together with the last token if that pays."""
    skipped_draft: int = -1
    """First token of a draft that was not computed, to learn whether it would have been right; -1 if none."""
    acceptance: float = 0.5
    """Acceptance rate of the first draft token, a moving average."""
    places: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Position after the last occurrence of each three tokens in a row; built up to `indexed`."""
    indexed: int = 0
    preemptions: int = 0
    arrived_at: float = 0.0
    began_at: float = 0.0
    """When it first got a slot."""

    @property
    def remaining(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return len(self.tokens) - self.cached

    @property
    def is_decoding(self) -> bool:
        return self.cached > 0 and self.remaining == 1 and self.sum_D is None

    @property
    def root(self) -> Hashable:
        return None if self.request.shared_prefix else self.request.tenant, self.adapter

    @property
    def needs_all_states(self) -> bool:
        """Whether every token must be computed, even if its block is cached."""
        return self.wants_scores or self.sum_D is not None

    @property
    def wants_scores(self) -> bool:
        return self.request.score_prompt and not self.scored

    @property
    def has_all(self) -> bool:
        """Whether max_tokens tokens were generated."""
        return self.left <= 0

    @property
    def left(self) -> int:
        return self.request.max_tokens - (len(self.tokens) - len(self.request.tokens))

    def advance(self, token: int, logprob: float, alternatives: list[Alternative]) -> Tokens:
        """Append a sampled token unless the sequence ends before it; return the reply, last or not."""
        request = self.request
        if self.has_all:
            return Tokens(request.id, finish="length")
        if token in request.stop_tokens:
            return Tokens(request.id, finish="stop")
        first = len(self.tokens) == len(request.tokens)
        self.tokens.append(token)
        if self.counts is not None:
            self.counts[token] = self.counts.get(token, 0) + 1
        if self.matcher is not None:
            self.matcher.advance(token)
        ended = self.matcher is not None and self.matcher.finished
        return Tokens(
            request.id,
            tokens=[token],
            logprobs=[logprob] if request.logprobs >= 0 else [],
            alternatives=[alternatives[: request.logprobs]] if request.logprobs > 0 else [],
            finish="stop" if ended else "length" if self.has_all else None,
            queued_s=round(self.began_at - self.arrived_at, 3) if first else 0.0,
        )


def begin(owner: Owner, request: Generate, arrival: int, adapter: int = -1) -> Sequence:
    """Start a sequence; tokens that an earlier engine generated (`resumed_tokens`) count for penalties."""
    sequence = Sequence(owner, request, list(request.tokens), arrival, adapter)
    if request.presence_penalty or request.frequency_penalty or request.repetition_penalty != 1.0:
        repeated = request.repetition_penalty != 1.0
        sequence.counts = dict.fromkeys(request.tokens, 0) if repeated else {}
        for token in request.tokens[len(request.tokens) - request.resumed_tokens :]:
            sequence.counts[token] = sequence.counts.get(token, 0) + 1
    return sequence


def refusal(request: Generate, vocabulary: int, context: int) -> tuple[str, str] | None:
    """Return the error code and message of an invalid request, or None."""
    wanted = len(request.tokens) + request.max_tokens
    if not request.tokens:
        return "bad_tokens", "the prompt is empty; there is nothing to continue"
    bad = outside([*request.tokens, *request.stop_tokens, *request.logit_bias], vocabulary)
    if bad is not None:
        return "bad_tokens", f"token {bad} is not in the vocabulary of {vocabulary}"
    if wanted > context:
        return "context_exceeded", (
            f"prompt of {len(request.tokens)} and {request.max_tokens} more tokens make {wanted}, "
            f"but the context is {context}"
        )
    checks = {
        "max_tokens": (request.max_tokens >= 0, "at least 0"),
        "temperature": (0.0 <= request.temperature < float("inf"), "finite and at least 0"),
        "top_k": (request.top_k >= 0, "at least 0"),
        "top_p": (0.0 < request.top_p <= 1.0, "in (0, 1]"),
        "min_p": (0.0 <= request.min_p <= 1.0, "in [0, 1]"),
        "presence_penalty": (abs(request.presence_penalty) < float("inf"), "finite"),
        "frequency_penalty": (abs(request.frequency_penalty) < float("inf"), "finite"),
        "repetition_penalty": (0.0 < request.repetition_penalty < float("inf"), "finite and above 0"),
        "logprobs": (request.logprobs >= -1, "at least -1"),
        "logit_bias": (all(abs(bias) < float("inf") for bias in request.logit_bias.values()), "finite"),
        "resumed_tokens": (
            0 <= request.resumed_tokens <= len(request.tokens),
            "from 0 to the length of the prompt",
        ),
    }
    for name, (right, rule) in checks.items():
        if not right:
            return "bad_request", f"{name} must be {rule}, got {getattr(request, name)}"
    return None


def outside(tokens: list[int], vocabulary: int) -> int | None:
    """Return a token that is not in the vocabulary, or None."""
    minimum, maximum = min(tokens, default=0), max(tokens, default=0)
    return minimum if minimum < 0 else maximum if maximum >= vocabulary else None
