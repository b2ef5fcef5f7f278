"""POST /v1/chat/completions: a conversation in, the model's next turn out.

Input: a ChatRequest. Output: a ChatReply, or a stream of ChatChunk.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from windlass.serve.gateway.routes.generation import TextAnswers, build, fit, generate
from windlass.serve.gateway.schemas.replies import (
    ChatChunk,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    FinishReason,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from windlass.serve.gateway.schemas.requests import DEFAULT_CHAT_TOKENS, ChatRequest
from windlass.serve.gateway.service import GatewayService, ModelEndpoint, check_tokens
from windlass.serve.gateway.text.answer import Answer, Scored, TextDelta
from windlass.serve.gateway.text.tokenise import TextCodec, token_name


class ChatAnswers(TextAnswers, frozen=True, kw_only=True):
    """Next turns of a conversation."""

    kind = "chat.completion"

    def whole_choice(self, place: int, delta: TextDelta) -> dict[str, Any]:
        return {
            "index": place,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": logprobs_of(self.text, delta.scored) if self.scored else None,
            "finish_reason": delta.finish or "stop",
        }

    def first_choices(self) -> list[ChunkChoice]:
        opening = Delta(role="assistant", content="")
        return [_choice(place, opening) for place in range(len(self.answers))]

    def next_choices(self, place: int, delta: TextDelta) -> list[ChunkChoice]:
        """Return the text, if there is any, and the end as a separate choice."""
        choices = []
        if delta.text or delta.scored:
            logprobs = logprobs_of(self.text, delta.scored) if delta.scored else None
            choices.append(_choice(place, Delta(content=delta.text), logprobs=logprobs))
        if delta.finish:
            choices.append(_choice(place, Delta(), finish_reason=delta.finish))
        return choices

    def chunk(self, choices: list[ChunkChoice], usage: Usage | None) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            object="chat.completion.chunk",
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
        )


async def converse(request: Request, body: ChatRequest, service: GatewayService) -> Response:
    """Answer a conversation, whole or as a stream."""
    return await generate(request, body, service, opening_of(body), prepare)


def opening_of(body: ChatRequest) -> str:
    """Return what all requests of a conversation share: the messages up to the first of the user."""
    first = next((n for n, message in enumerate(body.messages) if message.role == "user"), 0)
    return "\n".join(str(message.content) for message in body.messages[: first + 1])


async def prepare(body: ChatRequest, endpoint: ModelEndpoint, request_id: str, tenant: str) -> ChatAnswers:
    """Render the template, tokenise, check against the model, and build the engine's requests."""
    writer, served = endpoint.writer, endpoint.served
    check_tokens(list(body.logit_bias), writer.vocabulary, "logit_bias")
    prompt = served.template.render(body.messages)
    tokens = await endpoint.encode(prompt, special=served.template.wrap, param="messages")
    requested = body.max_completion_tokens or body.max_tokens
    usual = endpoint.service.default_tokens(DEFAULT_CHAT_TOKENS)
    max_tokens = fit(len(tokens), requested, default=usual, context=writer.context, param=_limit(body))
    requests = build(
        endpoint,
        body,
        tokens,
        id_=request_id,
        max_tokens=max_tokens,
        tenant=tenant,
        logprobs=(body.top_logprobs or 0) if body.logprobs else -1,
    )
    stops = [*body.stop, *served.template.stops]
    return ChatAnswers(
        id=f"chatcmpl-{request_id}",
        model=endpoint.id,
        created=int(time.time()),
        text=served.text,
        requests=requests,
        answers=[Answer(served.text, stops, endpoint.stop_tokens) for _ in requests],
        scored=bool(body.logprobs),
        prompt_tokens=len(tokens),
    )


def _limit(body: ChatRequest) -> str:
    """Return the parameter that sets the length of the answer, or "messages" if none does."""
    if body.max_completion_tokens is not None:
        return "max_completion_tokens"
    return "max_tokens" if body.max_tokens is not None else "messages"


def logprobs_of(text: TextCodec, scored: Sequence[Scored]) -> ChatLogprobs:
    """Return log-probabilities token by token, each with its bytes and alternatives."""
    content = []
    for item in scored:
        top = [
            TopLogprob(
                token=token_name(text, other.token),
                logprob=other.logprob,
                bytes=list(text.token_bytes(other.token)),
            )
            for other in item.alternatives
        ]
        content.append(
            TokenLogprob(
                token=token_name(text, item.token),
                logprob=item.logprob or 0.0,
                bytes=list(text.token_bytes(item.token)),
                top_logprobs=top,
            )
        )
    return ChatLogprobs(content=content, refusal=None)


def _choice(
    place: int,
    delta: Delta,
    *,
    logprobs: ChatLogprobs | None = None,
    finish_reason: FinishReason | None = None,
) -> ChunkChoice:
    return ChunkChoice(index=place, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
