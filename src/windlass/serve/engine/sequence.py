"""One request on its way from prompt to last token."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from windlass.spec.wire import Alternative, Generate, Tokens

Owner = Hashable
"""Whoever asked: ids are unique within an owner only."""


@dataclass(eq=False)
class Sequence:
    """All tokens so far, and how many of them the cache holds.

    `tokens` is one longer than `cached` while the sequence decodes: the last token was sampled and has
    not been computed yet.
    """

    owner: Owner
    request: Generate
    tokens: list[int]
    slot: int = -1
    cached: int = 0
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_alternatives: list[list[Alternative]] = field(default_factory=list)
    counts_V: Tensor | None = None
    """How often each token was generated; kept only for requests with penalties."""

    @property
    def remaining(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return len(self.tokens) - self.cached

    @property
    def prompt_length(self) -> int:
        return len(self.request.tokens)

    @property
    def has_all(self) -> bool:
        """Whether as many tokens were generated as were asked for."""
        return len(self.tokens) - self.prompt_length >= self.request.most_tokens

    def advance(self, token: int, logprob: float, alternatives: list[Alternative]) -> Tokens:
        """Take the next token, unless there is to be none; return what to say, `finish` if it is the last."""
        request = self.request
        if self.has_all:
            return Tokens(request.id, finish="length")
        if token in request.stop_tokens:
            return Tokens(request.id, finish="stop")
        self.tokens.append(token)
        if self.counts_V is not None:
            self.counts_V[token] += 1
        return Tokens(
            request.id,
            tokens=[token],
            logprobs=[logprob] if request.logprobs >= 0 else [],
            alternatives=[alternatives[: request.logprobs]] if request.logprobs > 0 else [],
            finish="length" if self.has_all else None,
        )


def begin(owner: Owner, request: Generate, vocabulary: int, device: torch.device) -> Sequence:
    """Start a sequence; what an earlier engine generated counts for penalties."""
    sequence = Sequence(owner, request, list(request.tokens))
    if request.presence_penalty or request.frequency_penalty:
        sequence.counts_V = torch.zeros(vocabulary, device=device)
        for token in request.tokens[len(request.tokens) - request.resumed_tokens :]:
            sequence.counts_V[token] += 1
    return sequence


def refusal(request: Generate, vocabulary: int, context: int) -> tuple[str, str] | None:
    """Return code and message of what is wrong with a request, or None."""
    wanted = len(request.tokens) + request.most_tokens
    if not request.tokens:
        return "bad_tokens", "the prompt is empty; there is nothing to continue"
    bad = outside([*request.tokens, *request.stop_tokens, *request.logit_bias], vocabulary)
    if bad is not None:
        return "bad_tokens", f"token {bad} is not in the vocabulary of {vocabulary}"
    if wanted > context:
        return "context_exceeded", (
            f"prompt of {len(request.tokens)} and {request.most_tokens} more tokens make {wanted}, "
            f"but the context is {context}"
        )
    checks = {
        "most_tokens": request.most_tokens >= 0,
        "temperature": 0.0 <= request.temperature < float("inf"),
        "top_k": request.top_k >= 0,
        "top_p": 0.0 < request.top_p <= 1.0,
        "min_p": 0.0 <= request.min_p <= 1.0,
        "presence_penalty": abs(request.presence_penalty) < float("inf"),
        "frequency_penalty": abs(request.frequency_penalty) < float("inf"),
        "logprobs": request.logprobs >= -1,
        "logit_bias": all(abs(bias) < float("inf") for bias in request.logit_bias.values()),
        "resumed_tokens": 0 <= request.resumed_tokens <= len(request.tokens),
    }
    wrong = next((name for name, right in checks.items() if not right), None)
    return None if wrong is None else ("bad_request", f"{wrong} = {getattr(request, wrong)} cannot be")


def outside(tokens: list[int], vocabulary: int) -> int | None:
    """Return a token that the vocabulary does not have, or None."""
    least, most = min(tokens, default=0), max(tokens, default=0)
    return least if least < 0 else most if most >= vocabulary else None
