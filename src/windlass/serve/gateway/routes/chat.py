"""POST /v1/chat/completions: a conversation in, the model's next turn out.

Input: a ChatRequest. Output: a ChatReply, or a stream of ChatChunk.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.streaming import CLIENT_LEFT, DONE, KEEP_ALIVE, EventStream, event, while_connected
from windlass.serve.gateway.caller import caller_of
from windlass.serve.gateway.observe.request_trace import request_trace_of
from windlass.serve.gateway.routes.generation import (
    Answer,
    Pieces,
    Scored,
    TextDelta,
    build,
    fit,
    pieces,
    spent,
    usage,
    whole,
)
from windlass.serve.gateway.schemas.frames import QuickFrames
from windlass.serve.gateway.schemas.replies import (
    ChatChunk,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from windlass.serve.gateway.schemas.requests import DEFAULT_CHAT_TOKENS, ChatRequest
from windlass.serve.gateway.service import GatewayService, ModelEndpoint, check_tokens, conversation_of
from windlass.serve.gateway.text.tokenise import TextCodec, token_name
from windlass.spec.protocol.wire import Generate

_encode = msgspec.json.Encoder(enc_hook=BaseModel.model_dump).encode


class ChatTask(msgspec.Struct, frozen=True):
    """A conversation made ready: what the engine is asked, and what becomes of its tokens."""

    id: str
    model: str
    created: int
    text: TextCodec
    requests: list[Generate]
    answers: list[Answer]
    scored: bool
    prompt_tokens: int

    def logprobs(self, piece: TextDelta) -> ChatLogprobs | None:
        return told(self.text, piece.scored) if self.scored else None

    def chunk(self, choices: list[ChunkChoice], spent: Usage | None = None) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            object="chat.completion.chunk",
            created=self.created,
            model=self.model,
            choices=choices,
            usage=spent,
        )


async def converse(request: Request, ask: ChatRequest, service: GatewayService) -> Response:
    """Answer a conversation, whole or as a stream."""
    caller = caller_of(request)
    journey = request_trace_of(request)
    desk = service.desk(ask.model, conversation_of(caller.tenant, ask.user, opening_of(ask)))
    if not desk.is_ready:
        await desk.meet()
    journey.standby = desk.standby
    state = request.scope["state"]
    work = await prepare(ask, desk, state["work_id"], caller.tenant)
    ticket = await service.ask(caller, work.requests, state["deadline"], journey)
    if ask.stream:
        with_usage = bool(ask.stream_options and ask.stream_options.include_usage)
        frames = _frames(work, pieces(ticket, work.answers), with_usage)
        return EventStream(frames, request.state.request_id, ticket.close)
    with closing(ticket):
        answered = await while_connected(request, whole(ticket, work.answers))
    if answered is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(_encode(_reply(work, answered)), media_type="application/json")


def opening_of(ask: ChatRequest) -> str:
    """Return what all turns of a conversation begin with: everything up to the first word of the user."""
    first = next((n for n, message in enumerate(ask.messages) if message.role == "user"), 0)
    return "\n".join(str(message.content) for message in ask.messages[: first + 1])


async def prepare(ask: ChatRequest, desk: ModelEndpoint, request_id: str, tenant: str) -> ChatTask:
    """Render the template, tokenise, check against the model, and write the engine's orders."""
    writer, served = desk.writer, desk.served
    check_tokens(list(ask.logit_bias), writer.vocabulary, "logit_bias")
    prompt = served.template.render(ask.messages)
    tokens = await desk.encode(prompt, special=served.template.wrap, param="messages")
    asked = ask.max_completion_tokens or ask.max_tokens
    usual = desk.service.default_tokens(DEFAULT_CHAT_TOKENS)
    most = fit(len(tokens), asked, default=usual, context=writer.context, param=_limit(ask))
    requests = build(
        desk,
        ask,
        tokens,
        id_=request_id,
        max_tokens=most,
        tenant=tenant,
        logprobs=(ask.top_logprobs or 0) if ask.logprobs else -1,
    )
    stops = [*ask.stop, *served.template.stops]
    return ChatTask(
        id=f"chatcmpl-{request_id}",
        model=desk.id,
        created=int(time.time()),
        text=served.text,
        requests=requests,
        answers=[Answer(served.text, stops, desk.stop_tokens) for _ in requests],
        scored=bool(ask.logprobs),
        prompt_tokens=len(tokens),
    )


def _limit(ask: ChatRequest) -> str:
    """Return the parameter that sets the length of the answer, or the messages where none does."""
    if ask.max_completion_tokens is not None:
        return "max_completion_tokens"
    return "max_tokens" if ask.max_tokens is not None else "messages"


def told(text: TextCodec, scored: Sequence[Scored]) -> ChatLogprobs:
    """Write log-probabilities token by token, each with its bytes and rivals."""
    content = []
    for one in scored:
        rivals = [
            TopLogprob(
                token=token_name(text, rival.token),
                logprob=rival.logprob,
                bytes=list(text.token_bytes(rival.token)),
            )
            for rival in one.alternatives
        ]
        content.append(
            TokenLogprob(
                token=token_name(text, one.token),
                logprob=one.logprob or 0.0,
                bytes=list(text.token_bytes(one.token)),
                top_logprobs=rivals,
            )
        )
    return ChatLogprobs(content=content, refusal=None)


def _reply(work: ChatTask, answered: Sequence[TextDelta]) -> dict[str, Any]:
    """Return what replies.ChatReply describes; to build that, check by check, takes ten times as long."""
    choices = [
        {
            "index": place,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": work.logprobs(piece),
            "finish_reason": piece.finish or "stop",
        }
        for place, piece in enumerate(answered)
    ]
    return {
        "id": work.id,
        "object": "chat.completion",
        "created": work.created,
        "model": work.model,
        "choices": choices,
        "usage": spent(work.prompt_tokens, work.answers),
    }


async def _frames(work: ChatTask, arriving: Pieces, with_usage: bool) -> AsyncGenerator[bytes, None]:
    places = range(len(work.answers))
    opening = Delta(role="assistant", content="")
    yield b"".join(_chunk(work, place, opening, TextDelta(""), with_usage) for place in places)
    quick = [QuickFrames(partial(_text_chunk, work, place, with_usage=with_usage)) for place in places]
    async with aclosing(arriving):
        async for arrived in arriving:
            frames = [_frame(work, place, piece, quick[place], with_usage) for place, piece in arrived]
            yield b"".join(frames) if arrived else KEEP_ALIVE
    if with_usage:
        yield event(work.chunk([], usage(work.prompt_tokens, work.answers)))
    yield DONE


def _frame(work: ChatTask, place: int, piece: TextDelta, quick: QuickFrames, with_usage: bool) -> bytes:
    """Write what a piece adds: its text, if there is any, and its end in a chunk of its own."""
    written = b""
    if piece.scored:
        delta = Delta(content=piece.text)
        written = _chunk(work, place, delta, TextDelta(piece.text, piece.scored), with_usage)
    elif piece.text:
        written = quick.write(piece.text)
    if piece.finish:
        written += _chunk(work, place, Delta(), TextDelta("", finish=piece.finish), with_usage)
    return written


def _text_chunk(work: ChatTask, place: int, text: str, *, with_usage: bool) -> bytes:
    return _chunk(work, place, Delta(content=text), TextDelta(text), with_usage)


def _chunk(work: ChatTask, place: int, delta: Delta, piece: TextDelta, with_usage: bool) -> bytes:
    """Write a chunk; `usage` is null in it when counts were asked for, and absent otherwise."""
    logprobs = work.logprobs(piece) if piece.scored else None
    choice = ChunkChoice(index=place, delta=delta, logprobs=logprobs, finish_reason=piece.finish)
    chunk = work.chunk([choice])
    if not with_usage:
        chunk.model_fields_set.discard("usage")
    return event(chunk)
