"""POST /v1/completions: prompts in, their continuations out.

Input: a CompletionRequest. Output: a CompletionReply, or a stream of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from windlass.serve.gateway.routes.generation import TextAnswers, build, fit, generate
from windlass.serve.gateway.schemas.replies import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionReply,
    Usage,
)
from windlass.serve.gateway.schemas.requests import DEFAULT_COMPLETION_TOKENS, CompletionRequest
from windlass.serve.gateway.service import GatewayService, ModelEndpoint, check_tokens
from windlass.serve.gateway.text.answer import Answer, Scored, TextDelta
from windlass.serve.gateway.text.tokenise import TextCodec, token_name
from windlass.spec.protocol.wire import Generate


class CompletionAnswers(TextAnswers, frozen=True, kw_only=True):
    """Continuations of prompts; with `shown`, each begins with its prompt."""

    kind = "text_completion"
    alternatives: bool

    def whole_choice(self, place: int, delta: TextDelta) -> dict[str, Any]:
        begun = self.shown[place] if self.shown is not None and not self.scored else ""
        return {
            "index": place,
            "text": begun + delta.text,
            "logprobs": self._logprobs(delta),
            "finish_reason": delta.finish,
        }

    def first_choices(self) -> list[CompletionChoice]:
        """Return the prompts, unless the engine sends them with their scores."""
        if self.shown is None or self.scored:
            return []
        return [
            self._choice(place, self.answers[place].echo(text, None)) for place, text in enumerate(self.shown)
        ]

    def next_choices(self, place: int, delta: TextDelta) -> list[CompletionChoice]:
        has_news = delta.text or delta.scored or delta.finish
        return [self._choice(place, delta)] if has_news else []

    def chunk(self, choices: list[CompletionChoice], usage: Usage | None) -> CompletionReply:
        return CompletionReply(
            id=self.id,
            object="text_completion",
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
        )

    def _choice(self, place: int, delta: TextDelta) -> CompletionChoice:
        logprobs = self._logprobs(delta)
        return CompletionChoice(index=place, text=delta.text, logprobs=logprobs, finish_reason=delta.finish)

    def _logprobs(self, delta: TextDelta) -> CompletionLogprobs | None:
        return logprobs_of(self.text, delta.scored, self.alternatives) if self.scored else None


async def complete(request: Request, body: CompletionRequest, service: GatewayService) -> Response:
    """Answer a request, whole or as a stream."""
    return await generate(request, body, service, body.prompt[0], prepare)


async def prepare(
    body: CompletionRequest, endpoint: ModelEndpoint, request_id: str, tenant: str
) -> CompletionAnswers:
    """Tokenise, check against the model, and build the engine's requests."""
    writer = endpoint.writer
    check_tokens(list(body.logit_bias), writer.vocabulary, "logit_bias")
    text, stop_tokens = endpoint.served.text, endpoint.stop_tokens
    requests: list[Generate] = []
    answers: list[Answer] = []
    shown: list[str] = []
    prompt_tokens = 0
    for number, prompt in enumerate(body.prompt):
        tokens = await endpoint.encode(prompt, special=True, param="prompt")
        max_tokens = fit(
            len(tokens),
            body.max_tokens,
            default=endpoint.service.default_tokens(DEFAULT_COMPLETION_TOKENS),
            context=writer.context,
            param="max_tokens" if body.max_tokens else "prompt",
        )
        requests += build(
            endpoint,
            body,
            tokens,
            id_=f"{request_id}-{number}",
            max_tokens=max_tokens,
            tenant=tenant,
            logprobs=-1 if body.logprobs is None else body.logprobs,
            score_prompt=bool(body.echo) and body.logprobs is not None,
        )
        answers += [Answer(text, body.stop, stop_tokens, prompt=tokens) for _ in range(body.n or 1)]
        shown += [prompt if isinstance(prompt, str) else text.decode(tokens)] * (body.n or 1)
        prompt_tokens += len(tokens)
    return CompletionAnswers(
        id=f"cmpl-{request_id}",
        model=endpoint.id,
        created=int(time.time()),
        text=text,
        requests=requests,
        answers=answers,
        shown=shown if body.echo else None,
        scored=body.logprobs is not None,
        alternatives=bool(body.logprobs),
        prompt_tokens=prompt_tokens,
    )


def logprobs_of(text: TextCodec, scored: Sequence[Scored], alternatives: bool) -> CompletionLogprobs:
    """Return log-probabilities as parallel lists; the chosen token is always among its alternatives."""
    tops: list[dict[str, float] | None] = []
    for item in scored:
        if item.logprob is None:
            tops.append(None)
            continue
        top = {token_name(text, other.token): other.logprob for other in item.alternatives}
        tops.append(top | {token_name(text, item.token): item.logprob})
    return CompletionLogprobs(
        tokens=[token_name(text, item.token) for item in scored],
        token_logprobs=[item.logprob for item in scored],
        top_logprobs=tops if alternatives else None,
        text_offset=[item.offset for item in scored],
    )
