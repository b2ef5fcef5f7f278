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
    """A prepared conversation: the requests for the engine, and the answers made from its tokens."""

    id: str
    model: str
    created: int
    text: TextCodec
    requests: list[Generate]
    answers: list[Answer]
    scored: bool
    prompt_tokens: int

    def logprobs(self, piece: TextDelta) -> ChatLogprobs | None:
        return logprobs_of(self.text, piece.scored) if self.scored else None

    def chunk(self, choices: list[ChunkChoice], spent: Usage | None = None) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            object="chat.completion.chunk",
            created=self.created,
            model=self.model,
            choices=choices,
            usage=spent,
        )


async def converse(request: Request, body: ChatRequest, service: GatewayService) -> Response:
    """Answer a conversation, whole or as a stream."""
    caller = caller_of(request)
    trace = request_trace_of(request)
    endpoint = service.endpoint(body.model, conversation_of(caller.tenant, body.user, opening_of(body)))
    if not endpoint.is_ready:
        await endpoint.wait_until_ready()
    trace.standby = endpoint.standby
    state = request.scope["state"]
    task = await prepare(body, endpoint, state["work_id"], caller.tenant)
    handle = await service.submit(caller, task.requests, state["deadline"], trace)
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        frames = _frames(task, pieces(handle, task.answers), with_usage)
        return EventStream(frames, request.state.request_id, handle.close)
    with closing(handle):
        answered = await while_connected(request, whole(handle, task.answers))
    if answered is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(_encode(_reply(task, answered)), media_type="application/json")


def opening_of(body: ChatRequest) -> str:
    """Return what all requests of a conversation share: the messages up to the first of the user."""
    first = next((n for n, message in enumerate(body.messages) if message.role == "user"), 0)
    return "\n".join(str(message.content) for message in body.messages[: first + 1])


async def prepare(body: ChatRequest, endpoint: ModelEndpoint, request_id: str, tenant: str) -> ChatTask:
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
    return ChatTask(
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


def _reply(task: ChatTask, answered: Sequence[TextDelta]) -> dict[str, Any]:
    """Return a ChatReply as a dictionary; to build and validate the model takes ten times as long."""
    choices = [
        {
            "index": place,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": task.logprobs(piece),
            "finish_reason": piece.finish or "stop",
        }
        for place, piece in enumerate(answered)
    ]
    return {
        "id": task.id,
        "object": "chat.completion",
        "created": task.created,
        "model": task.model,
        "choices": choices,
        "usage": spent(task.prompt_tokens, task.answers),
    }


async def _frames(task: ChatTask, arriving: Pieces, with_usage: bool) -> AsyncGenerator[bytes, None]:
    places = range(len(task.answers))
    opening = Delta(role="assistant", content="")
    yield b"".join(_chunk(task, place, opening, TextDelta(""), with_usage) for place in places)
    quick = [QuickFrames(partial(_text_chunk, task, place, with_usage=with_usage)) for place in places]
    async with aclosing(arriving):
        async for arrived in arriving:
            frames = [_frame(task, place, piece, quick[place], with_usage) for place, piece in arrived]
            yield b"".join(frames) if arrived else KEEP_ALIVE
    if with_usage:
        yield event(task.chunk([], usage(task.prompt_tokens, task.answers)))
    yield DONE


def _frame(task: ChatTask, place: int, piece: TextDelta, quick: QuickFrames, with_usage: bool) -> bytes:
    """Return the chunks of a piece: its text, if there is any, and its end in a separate chunk."""
    written = b""
    if piece.scored:
        delta = Delta(content=piece.text)
        written = _chunk(task, place, delta, TextDelta(piece.text, piece.scored), with_usage)
    elif piece.text:
        written = quick.write(piece.text)
    if piece.finish:
        written += _chunk(task, place, Delta(), TextDelta("", finish=piece.finish), with_usage)
    return written


def _text_chunk(task: ChatTask, place: int, text: str, *, with_usage: bool) -> bytes:
    return _chunk(task, place, Delta(content=text), TextDelta(text), with_usage)


def _chunk(task: ChatTask, place: int, delta: Delta, piece: TextDelta, with_usage: bool) -> bytes:
    """Return a chunk; its `usage` is null if the client wants usage at the end, and absent otherwise."""
    logprobs = task.logprobs(piece) if piece.scored else None
    choice = ChunkChoice(index=place, delta=delta, logprobs=logprobs, finish_reason=piece.finish)
    chunk = task.chunk([choice])
    if not with_usage:
        chunk.model_fields_set.discard("usage")
    return event(chunk)
